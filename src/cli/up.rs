//! `daisy cluster up`: this machine's node, in the foreground or as a service.

use std::path::PathBuf;
use std::pin::pin;

use clap::Args;
use tokio::sync::oneshot;

use super::cluster::{NodeArgs, runtime};
use super::service::{self, Wish};
use super::signals::Signals;
use super::{Failure, render};

#[derive(Debug, Args)]
pub(crate) struct Up {
    #[command(flatten)]
    node: NodeArgs,
    /// Have the system run it, now and from each start on, with the other flags as given here
    #[arg(long, conflicts_with = "uninstall")]
    install: bool,
    /// Take that back
    #[arg(long)]
    uninstall: bool,
}

impl Up {
    pub(crate) fn run(self, home: PathBuf) -> Result<(), Failure> {
        if self.install || self.uninstall {
            // Faults of the flags show now, not in a service's log.
            self.node.config(home.clone())?;
            let wish = if self.install { Wish::Install } else { Wish::Uninstall };
            return service::run(wish, &self.node.command_line(&home)?);
        }
        let runtime = runtime()?;
        let outcome = runtime.block_on(self.up(home));
        // A second Ctrl+C leaves tasks behind; they must not keep the process.
        runtime.shutdown_background();
        outcome
    }

    async fn up(self, home: PathBuf) -> Result<(), Failure> {
        let mut signals = Signals::new()?;
        let node = self.node.open(home)?;
        render::up(&node.id(), node.listens());
        let (stop, stopped) = oneshot::channel::<()>();
        let mut running = pin!(node.run(async {
            let _ = stopped.await;
        }));
        tokio::select! {
            () = &mut running => return Ok(()),
            () = signals.next() => drop(stop),
        }
        tokio::select! {
            () = running => {}
            () = signals.next() => {}
        }
        Ok(())
    }
}
