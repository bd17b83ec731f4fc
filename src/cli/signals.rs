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
    hangup: Signal,
}

impl Signals {
    pub(crate) fn new() -> Result<Self, Failure> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).context("cannot watch Ctrl+C")?,
            terminate: signal(SignalKind::terminate()).context("cannot watch SIGTERM")?,
            hangup: signal(SignalKind::hangup()).context("cannot watch SIGHUP")?,
        })
    }

    /// The terminal is lost, or the wish to stop.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            () = heard(&mut self.interrupt) => {}
            () = heard(&mut self.terminate) => {}
            () = heard(&mut self.hangup) => {}
        }
    }

    /// Tells a lost terminal from the wish to stop.
    pub(crate) async fn next_of(&mut self) -> Heard {
        tokio::select! {
            () = heard(&mut self.interrupt) => Heard::Stop,
            () = heard(&mut self.terminate) => Heard::Stop,
            () = heard(&mut self.hangup) => Heard::TerminalLost,
        }
    }
}

/// What a signal wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard {
    Stop,
    TerminalLost,
}

async fn heard(signal: &mut Signal) {
    if signal.recv().await.is_none() {
        pending::<()>().await;
    }
}
