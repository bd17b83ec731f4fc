//! `daisy cluster serve`: one model behind one endpoint, for as long as this command runs.
//!
//! It asks the node of this machine; where none runs it hosts one itself and asks that one over
//! the same socket.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use daisy_proto::local::{FromNode, Refusal, RefusalKind, Serve, ToNode};
use tokio::net::UnixStream;

use super::cluster::{NodeArgs, runtime};
use super::own_node::OwnNode;
use super::signals::{Heard, Signals};
use super::wish::WishArgs;
use super::{Failure, plan, render};
use crate::ipc::{Reader, Writer};

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    wish: WishArgs,
    /// HTTP port; 0 takes a free one
    #[arg(long, default_value_t = 8100)]
    port: u16,
    /// HTTP address [default: 127.0.0.1; with --driver, where this machine reaches it]
    #[arg(long, value_name = "ADDR")]
    host: Option<String>,
    /// End this command when the model is ready, and leave it with the node; `daisy cluster stop` ends it
    #[arg(long)]
    detach: bool,
    /// Only show the plan, as `daisy cluster plan` does
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    node: NodeArgs,
}

impl ServeArgs {
    pub(crate) fn run(self, home: PathBuf) -> Result<(), Failure> {
        let runtime = runtime()?;
        let outcome = runtime.block_on(self.serve(home));
        // A second Ctrl+C leaves tasks behind; they must not keep the process.
        runtime.shutdown_background();
        outcome
    }

    async fn serve(self, home: PathBuf) -> Result<(), Failure> {
        let wish = Serve {
            host: self.host,
            port: self.port,
            peers: self.node.peer_addrs()?,
            ..self.wish.wish(&home)?
        };
        let mut signals = Signals::new()?;
        let OwnNode { stream, hosted } = OwnNode::reach(&self.node, home).await?;
        if self.detach && hosted.is_some() {
            return Err(Failure::Refused(Refusal {
                message:
                    "no node runs on this machine, so --detach has nobody to leave the model with"
                        .to_owned(),
                hints: vec![
                    "start one: `daisy cluster up`, or for good `daisy cluster up --install`"
                        .to_owned(),
                ],
                kind: RefusalKind::Usage,
            }));
        }
        let stays = if hosted.is_some() {
            Stays::No
        } else if self.detach {
            Stays::WhenReady
        } else {
            Stays::WithoutTerminal
        };
        let outcome = if self.dry_run {
            plan::ask(wish, stream).await.map(|report| render::plan(&report))
        } else {
            attend(wish, stream, stays, &mut signals).await
        };
        if let Some(hosted) = hosted {
            hosted.stop(&mut signals).await;
        }
        outcome
    }
}

/// Whether the model outlives this command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stays {
    /// The node is part of this process.
    No,
    /// When the terminal is lost.
    WithoutTerminal,
    /// As soon as it is ready.
    WhenReady,
}

/// Asks the node to serve and shows what it says, until it stops, Ctrl+C was pressed twice, or the model
/// stays without this command.
async fn attend(
    wish: Serve,
    stream: UnixStream,
    stays: Stays,
    signals: &mut Signals,
) -> Result<(), Failure> {
    let (read, write) = stream.into_split();
    let (mut reader, mut writer) = (Reader::new(read), Writer::new(write));
    writer.write(&ToNode::Serve(Box::new(wish))).await.context("cannot ask the node")?;
    let mut draining = false;
    loop {
        tokio::select! {
            event = reader.read::<FromNode>() => match event.context("the node's answer")? {
                Some(FromNode::Stopped) => {
                    render::stopped();
                    return Ok(());
                }
                Some(FromNode::Refused(refusal)) => return Err(Failure::Refused(refusal)),
                Some(event) => {
                    render::event(&event);
                    if stays == Stays::WhenReady && matches!(event, FromNode::Ready { .. }) {
                        render::detached();
                        return detach(&mut writer).await;
                    }
                }
                None => return Err(anyhow::anyhow!("the node went away").into()),
            },
            heard = signals.next_of() => {
                if heard == Heard::TerminalLost && stays != Stays::No && !draining {
                    // There is nobody to tell.
                    return detach(&mut writer).await;
                }
                if draining {
                    return Ok(());
                }
                draining = true;
                render::draining(GRACE_MS);
                let drain = ToNode::Drain { grace_ms: GRACE_MS };
                writer.write(&drain).await.context("cannot ask the node to stop")?;
            }
        }
    }
}

async fn detach(writer: &mut Writer) -> Result<(), Failure> {
    Ok(writer.write(&ToNode::Detach).await.context("cannot tell the node to go on")?)
}

/// What running requests get after the first Ctrl+C.
pub(crate) const GRACE_MS: u64 = 5000;
