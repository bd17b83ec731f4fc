//! `daisy cluster logs [NODE]`: what a node and its ranks wrote. The own log is read from disk, so
//! that it can be read when the node is dead; another node's comes over the own node.

use std::path::Path;

use anyhow::Context;
use clap::Args;
use daisy_proto::local::{FromNode, ToNode};

use super::cluster::runtime;
use super::{Failure, render, status};
use crate::ipc::{Reader, Writer};
use crate::logs;

#[derive(Debug, Args)]
pub(crate) struct Logs {
    /// Another node, by name or address [default: this one]
    #[arg(value_name = "NODE")]
    node: Option<String>,
    /// How many of the last lines
    #[arg(short = 'n', long, default_value_t = 200, value_name = "LINES")]
    lines: u32,
}

impl Logs {
    pub(crate) fn run(self, home: &Path) -> Result<(), Failure> {
        let Some(node) = self.node else {
            let lines = usize::try_from(self.lines).unwrap_or(usize::MAX);
            let text = logs::tail(home, lines, OWN_BYTES_MAX).context("cannot read the log")?;
            render::log(&text);
            return Ok(());
        };
        runtime()?.block_on(async {
            let (read, write) = status::connect(home).await?.into_split();
            let ask = ToNode::Logs { node, lines: self.lines };
            Writer::new(write).write(&ask).await.context("cannot ask the node")?;
            match Reader::new(read).read().await.context("cannot hear the node")? {
                Some(FromNode::Logs(text)) => render::log(&text),
                Some(FromNode::Refused(refusal)) => return Err(Failure::Refused(refusal)),
                other => Err(anyhow::anyhow!("the node answered out of turn: {other:?}"))?,
            }
            Ok(())
        })
    }
}

/// More lines than anyone reads in a terminal.
const OWN_BYTES_MAX: usize = 4 << 20;
