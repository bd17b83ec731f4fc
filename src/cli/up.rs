//! `daisy cluster up`: this machine's node, in the foreground.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use super::cluster::{NodeArgs, runtime};
use super::{Failure, render};

#[derive(Debug, Args)]
pub(crate) struct Up {
    #[command(flatten)]
    node: NodeArgs,
}

impl Up {
    pub(crate) fn run(self, home: PathBuf) -> Result<(), Failure> {
        runtime()?.block_on(async {
            let node = self.node.open(home).await?;
            render::up(&node.id(), node.listens());
            let mut interrupt = signal(SignalKind::interrupt()).context("cannot watch Ctrl+C")?;
            let mut terminate = signal(SignalKind::terminate()).context("cannot watch SIGTERM")?;
            node.run(async {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
            })
            .await;
            Ok(())
        })
    }
}
