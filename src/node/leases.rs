//! Ranks of a driver whose connection broke off without a word. They are kept for a moment, in which the
//! driver may come back by another link; then they end.
//!
//! Start at [`Leases::keep`] and [`Leases::wait_for`].

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use daisy_proto::control::Event;
use daisy_proto::{NodeId, PipelineId, Rank};
use futures::future::join_all;
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;

use super::ranks::{RankEvent, RankProcess};
use crate::net::UdpRelay;

/// The ranks that one driver has here, and what they tell.
#[derive(Debug)]
pub(crate) struct Ranks {
    pub(crate) by_pipeline: HashMap<PipelineId, RankProcess>,
    pub(crate) events_in: mpsc::Sender<RankTold>,
    pub(crate) events: mpsc::Receiver<RankTold>,
    /// What is passed on here for two other ranks of the pipeline.
    pub(crate) relays: Vec<(PipelineId, UdpRelay)>,
    /// The last way of each rank that left the first one. Told again to a driver that is back: what is
    /// sent into a connection that breaks off is lost.
    pub(crate) moved: HashMap<PipelineId, Event>,
}

pub(crate) type RankTold = (PipelineId, Rank, RankEvent);

impl Ranks {
    pub(crate) fn none() -> Self {
        let (events_in, events) = mpsc::channel(EVENTS_MAX);
        Self {
            by_pipeline: HashMap::new(),
            events_in,
            events,
            relays: Vec::new(),
            moved: HashMap::new(),
        }
    }

    /// Waits until every process is gone.
    pub(crate) async fn stop(self) {
        // Nobody reads what they say of it.
        drop(self.events);
        join_all(self.by_pipeline.into_values().map(RankProcess::stop)).await;
    }
}

#[derive(Debug, Default)]
pub(crate) struct Leases {
    kept: Mutex<Vec<(NodeId, Ranks)>>,
    changed: Notify,
}

impl Leases {
    /// Keeps the ranks of a lost driver for a moment. Returns when they are taken over, or have ended.
    pub(crate) async fn keep(&self, driver: NodeId, ranks: Ranks) {
        let Some(pipeline) = ranks.by_pipeline.keys().next().copied() else { return };
        self.now().push((driver, ranks));
        self.changed.notify_waiters();
        tokio::time::sleep(KEPT_FOR).await;
        if let Some(ranks) = self.take(driver, pipeline) {
            tracing::info!(driver = %driver.short(), "the driver did not come back: its ranks end");
            ranks.stop().await;
        }
    }

    /// The ranks of which `pipeline` has one, once the loss of their driver is seen here too.
    pub(crate) async fn wait_for(&self, driver: NodeId, pipeline: PipelineId) -> Option<Ranks> {
        let kept = async {
            loop {
                let changed = self.changed.notified();
                if let Some(ranks) = self.take(driver, pipeline) {
                    return ranks;
                }
                changed.await;
            }
        };
        timeout(SEEN_WITHIN, kept).await.ok()
    }

    fn take(&self, driver: NodeId, pipeline: PipelineId) -> Option<Ranks> {
        let mut kept = self.now();
        let at = kept
            .iter()
            .position(|(of, ranks)| *of == driver && ranks.by_pipeline.contains_key(&pipeline))?;
        Some(kept.swap_remove(at).1)
    }

    fn now(&self) -> MutexGuard<'_, Vec<(NodeId, Ranks)>> {
        // Entries come and go whole, so a poisoned lock holds nothing half-done.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Progress of a rank that loads: at most one message a layer.
const EVENTS_MAX: usize = 256;
/// The driver has noticed the loss at about the same time, and a dial takes less than a second.
const KEPT_FOR: Duration = Duration::from_secs(5);
/// The two ends see a silence up to a second apart.
const SEEN_WITHIN: Duration = Duration::from_secs(4);
