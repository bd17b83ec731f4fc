//! The node of this machine: the one that runs, or one that a command hosts for as long as it runs.

use std::path::PathBuf;

use anyhow::Context;
use daisy_proto::local::{Refusal, RefusalKind};
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::cluster::NodeArgs;
use super::signals::Signals;
use super::{Failure, render};
use crate::ipc;

/// A connection to this machine's node.
pub(crate) struct OwnNode {
    pub(crate) stream: UnixStream,
    pub(crate) hosted: Option<Hosted>,
}

impl OwnNode {
    /// Connects to the node that runs on this machine, or else starts one within this process.
    pub(crate) async fn reach(args: &NodeArgs, home: PathBuf) -> Result<Self, Failure> {
        if let Ok(socket) = ipc::socket_path(&home)
            && let Ok(stream) = UnixStream::connect(socket).await
        {
            let flags = args.of_a_new_node();
            if !flags.is_empty() {
                return Err(Failure::Refused(Refusal {
                    message: format!(
                        "a node runs on this machine already, so {} cannot count any more",
                        flags.join(", ")
                    ),
                    hints: vec![
                        "leave it out, or end that node with `daisy cluster down`".to_owned(),
                    ],
                    kind: RefusalKind::Usage,
                }));
            }
            return Ok(Self { stream, hosted: None });
        }
        let opened = args.open(home.clone())?;
        render::up(&opened.id(), opened.listens());
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(opened.run(async {
            let _ = stopped.await;
        }));
        let socket = ipc::socket_path(&home).context("cannot name the local socket")?;
        let stream = UnixStream::connect(socket).await.context("cannot reach the own node")?;
        Ok(Self { stream, hosted: Some(Hosted { stop, task }) })
    }
}

/// A node inside this process.
pub(crate) struct Hosted {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Hosted {
    /// Until the node has ended, or the user has had enough.
    pub(crate) async fn stop(self, signals: &mut Signals) {
        let _ = self.stop.send(());
        tokio::select! {
            _ = self.task => {}
            () = signals.next() => {}
        }
    }
}
