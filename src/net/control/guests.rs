//! Those on the line: strangers on their way to be paired, at a bounded rate, and the open connections
//! of trusted nodes, so that unpairing can end them.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use daisy_proto::{CloseReason, NodeId};
use quinn::Connection;
use tokio::sync::mpsc;

use super::connection::Line;
use crate::net::door::Refusals;
use crate::net::ending::close;
use crate::net::pair::PairConnection;
use crate::net::transport::canonical;

/// Takes a stranger in when its turn comes.
pub(super) async fn receive(
    connection: Connection,
    peer: NodeId,
    strangers: &mpsc::Sender<PairConnection>,
    pace: &Pace,
    refusals: &Refusals,
) {
    let remote = canonical(connection.remote_address());
    let Ok(slot) = strangers.try_reserve() else {
        refusals.record(remote, "came to be paired while others were");
        return close(&connection, CloseReason::Busy);
    };
    // A dialer tries several addresses and speaks on the first that answers.
    let Ok((send, recv)) = connection.accept_bi().await else { return };
    tokio::time::sleep(pace.wait(Instant::now())).await;
    slot.send(PairConnection::new(connection, peer, send, recv));
}

/// Pairing is a person's work: no more of it than a few tries a second. The number of places bounds
/// how many wait.
#[derive(Debug, Default)]
pub(super) struct Pace(Mutex<Option<Instant>>);

impl Pace {
    /// How long the next one waits for its turn.
    fn wait(&self, now: Instant) -> Duration {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let turn = last.map_or(now, |last| now.max(last + PAIR_INTERVAL));
        *last = Some(turn);
        turn - now
    }
}

/// The open connections, so that unpairing can end them.
#[derive(Debug, Clone, Default)]
pub(super) struct Lines(Arc<Mutex<Vec<Weak<Line>>>>);

impl Lines {
    pub(super) fn add(&self, line: &Arc<Line>) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.retain(|line| line.strong_count() > 0);
        lines.push(Arc::downgrade(line));
    }

    pub(super) fn open(&self) -> Vec<Arc<Line>> {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().filter_map(Weak::upgrade).collect()
    }
}

/// Strangers that wait for [`super::ControlEndpoint::accept_pair`].
pub(super) const STRANGERS_MAX: usize = 4;
const PAIR_INTERVAL: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_take_turns() {
        let (pace, now) = (Pace::default(), Instant::now());
        let waits: Vec<_> = (0..3).map(|_| pace.wait(now)).collect();
        assert_eq!(waits, [Duration::ZERO, PAIR_INTERVAL, PAIR_INTERVAL * 2]);
        assert_eq!(pace.wait(now + PAIR_INTERVAL * 9), Duration::ZERO);
    }
}
