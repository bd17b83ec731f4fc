//! Takes the samples of memory that a [`Guard`] decides by.

use std::sync::Arc;

use daisy_proto::Facts;
use tokio::time::{Instant, sleep_until};

use crate::guard::{Guard, Step};
use crate::machine::Machine;

/// Watches the memory of this machine for one rank.
#[derive(Debug)]
pub(super) struct MemoryWatch {
    machine: Arc<Machine>,
    guard: Guard,
    /// When the next sample is due.
    due: Instant,
}

impl MemoryWatch {
    pub(super) async fn start(machine: Arc<Machine>) -> Self {
        let facts = read(&machine).await;
        let guard = Guard::new(&facts, Machine::memory_floor());
        let due = Instant::now() + guard.interval();
        Self { machine, guard, due }
    }

    pub(super) fn loaded(&mut self) {
        self.guard.loaded();
    }

    /// Waits until something must be done. Whoever stops waiting loses no more than a sample.
    pub(super) async fn next(&mut self) -> Step {
        loop {
            sleep_until(self.due).await;
            self.due = Instant::now() + self.guard.interval();
            if let Some(step) = self.guard.take(&read(&self.machine).await) {
                return step;
            }
        }
    }
}

async fn read(machine: &Arc<Machine>) -> Facts {
    let machine = Arc::clone(machine);
    let read = tokio::task::spawn_blocking(move || machine.facts());
    // Reading never panics; if it did, that would be no reason to end a rank.
    read.await.unwrap_or_else(|_| Facts { available_bytes: u64::MAX, ..Facts::default() })
}
