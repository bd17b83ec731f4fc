//! The wish to stop: the first one lets work end, the next one does not. What ends, and how, is the
//! commands' business.

use std::future::pending;

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::Failure;

/// Ctrl+C, or the polite kill.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    pub(crate) fn new() -> Result<Self, Failure> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).context("cannot watch Ctrl+C")?,
            terminate: signal(SignalKind::terminate()).context("cannot watch SIGTERM")?,
        })
    }

    pub(crate) async fn next(&mut self) {
        let seen = tokio::select! {
            seen = self.interrupt.recv() => seen,
            seen = self.terminate.recv() => seen,
        };
        if seen.is_none() {
            pending::<()>().await;
        }
    }
}
