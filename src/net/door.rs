//! The door of a listening endpoint: lets dialers in, each through a handshake of its own.
//!
//! A slow, silent or hostile dialer holds one of a bounded number of places for a bounded time, and
//! the oldest place goes to a newcomer when all are taken. Refused keys are counted, and logged at a
//! bounded rate. The door does not know what is said after the handshake. Start at [`Door::run`].

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use daisy_proto::NodeId;
use quinn::{Connecting, Connection, Incoming};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::tls::{self, Gate, KeyPair, Pin, Shown};
use super::transport::Open;

/// Who may come in, and how.
pub(crate) struct Door {
    key: KeyPair,
    gates: Vec<Gate>,
    base: quinn::ServerConfig,
    refusals: Arc<Refusals>,
}

impl Door {
    pub(crate) fn new(key: &KeyPair, gates: Vec<Gate>) -> Result<Self, rustls::Error> {
        let crypto = tls::server(key, Pin::for_guest(&gates))?;
        let base = quinn::ServerConfig::with_crypto(crypto);
        Ok(Self { key: key.clone(), gates, base, refusals: Arc::default() })
    }

    /// For [`super::transport::open`].
    pub(crate) fn server_config(&self) -> quinn::ServerConfig {
        self.base.clone()
    }

    pub(crate) fn refusals(&self) -> Arc<Refusals> {
        Arc::clone(&self.refusals)
    }

    /// Accepts until the endpoint closes. `welcome` runs after each good handshake, for several
    /// dialers at a time and within their deadline; what it makes of a connection goes to `guests`.
    pub(crate) async fn run<T, W, F>(mut self, open: Open, welcome: W, guests: mpsc::Sender<T>)
    where
        T: Send + 'static,
        W: Fn(Connection, Shown) -> F + Send + Sync + 'static,
        F: Future<Output = Option<T>> + Send,
    {
        self.base.transport_config(Arc::clone(&open.transport));
        let welcome = Arc::new(welcome);
        let mut places = Places::default();
        while let Some(incoming) = open.endpoint.accept().await {
            places.sweep();
            // Once it gets busy, a dialer first proves that its address is its own: a flood from
            // forged addresses then costs a reply each, and no place.
            if places.is_busy() && !incoming.remote_address_validated() && incoming.may_retry() {
                let _ = incoming.retry();
                continue;
            }
            let remote = incoming.remote_address();
            let Some((connecting, pin)) = self.start(incoming) else { continue };
            let (refusals, welcome, guests) =
                (self.refusals(), Arc::clone(&welcome), guests.clone());
            let task = tokio::spawn(async move {
                let entry = async {
                    let connection = handshake(connecting, &pin, remote, &refusals).await?;
                    let guest = welcome(connection, pin.shown()?).await?;
                    guests.send(guest).await.ok()
                };
                if tokio::time::timeout(ENTRY_DEADLINE, entry).await.is_err() {
                    refusals.record(remote, "did not finish its handshake in time");
                }
            });
            places.take(task.abort_handle());
        }
    }

    /// A pin of its own for each dialer tells which key came from which address.
    fn start(&self, incoming: Incoming) -> Option<(Connecting, Arc<Pin>)> {
        let pin = Pin::for_guest(&self.gates);
        let mut config = self.base.clone();
        config.crypto = tls::server(&self.key, Arc::clone(&pin)).ok()?;
        Some((incoming.accept_with(Arc::new(config)).ok()?, pin))
    }
}

async fn handshake(
    connecting: Connecting,
    pin: &Pin,
    remote: SocketAddr,
    refusals: &Refusals,
) -> Option<Connection> {
    match connecting.await {
        Ok(connection) => Some(connection),
        Err(error) => {
            match pin.shown() {
                Some(shown) if !shown.trusted => {
                    let key = NodeId(shown.key);
                    refusals.record(remote, &format!("showed the key {key}, which is not trusted"));
                }
                _ => refusals.record(remote, &format!("failed its handshake: {error}")),
            }
            None
        }
    }
}

/// Handshakes under way, oldest first.
#[derive(Default)]
struct Places(VecDeque<AbortHandle>);

impl Places {
    fn sweep(&mut self) {
        self.0.retain(|task| !task.is_finished());
    }

    fn is_busy(&self) -> bool {
        self.0.len() >= PLACES_BUSY
    }

    /// An honest handshake takes milliseconds, so the oldest one is the least likely to be honest.
    fn take(&mut self, task: AbortHandle) {
        if self.0.len() >= PLACES_MAX
            && let Some(oldest) = self.0.pop_front()
        {
            oldest.abort();
        }
        self.0.push_back(task);
    }
}

/// Counts who was turned away and logs at most one of them a second.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    count: AtomicU64,
    log: Mutex<RefusalLog>,
}

#[derive(Debug, Default)]
struct RefusalLog {
    written_at: Option<Instant>,
    count_written: u64,
}

impl Refusals {
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub(crate) fn record(&self, remote: SocketAddr, why: &str) {
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        if log.written_at.is_some_and(|at| at.elapsed() < LOG_INTERVAL) {
            return;
        }
        let unlogged = count.saturating_sub(log.count_written + 1);
        *log = RefusalLog { written_at: Some(Instant::now()), count_written: count };
        tracing::warn!(%remote, unlogged, "refused a connection: it {why}");
    }
}

/// Handshake and first message together. Generous: a machine that is busy compiling is honest too.
const ENTRY_DEADLINE: Duration = Duration::from_secs(5);
/// Handshakes at a time; each holds some 100 KB.
const PLACES_MAX: usize = 64;
/// Above this many, dialers prove their address first.
const PLACES_BUSY: usize = 16;
const LOG_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_oldest_place_goes_to_the_newcomer() {
        let mut places = Places::default();
        let tasks: Vec<_> =
            (0..=PLACES_MAX).map(|_| tokio::spawn(std::future::pending::<()>())).collect();
        for task in &tasks {
            places.take(task.abort_handle());
        }
        let first = tasks.into_iter().next().unwrap();
        assert!(first.await.unwrap_err().is_cancelled());
        assert_eq!(places.0.len(), PLACES_MAX);
        places.sweep();
        assert!(places.is_busy(), "the others still wait");
    }

    #[test]
    fn a_flood_of_refusals_is_counted_in_full_and_logged_once() {
        let refusals = Refusals::default();
        let remote = SocketAddr::from(([127, 0, 0, 1], 1));
        for _ in 0..1000 {
            refusals.record(remote, "is a test");
        }
        assert_eq!(refusals.count(), 1000);
        assert!(refusals.log.lock().unwrap().count_written < 1000);
    }
}
