//! `daisy cluster serve`: one model behind one endpoint, for as long as this command runs.
//!
//! It asks the node of this machine; where none runs it hosts one itself and asks that one over
//! the same socket.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, ValueEnum};
use daisy_proto::Dtype;
use daisy_proto::local::{FromNode, LinkWish, Nodes, Refusal, RefusalKind, Serve, ToNode};
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::cluster::{NodeArgs, runtime};
use super::signals::Signals;
use super::{Failure, render};
use crate::ipc::{self, Reader, Writer};

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// The checkpoint: a directory, or a name under models/ in Daisy's home
    #[arg(long, value_name = "DIR|NAME")]
    model: PathBuf,
    /// HTTP port; 0 takes a free one
    #[arg(long, default_value_t = 8100)]
    port: u16,
    /// HTTP address
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// Layers per rank in rank order, as in 18,12 [default: balanced by bytes]
    #[arg(long, value_name = "N,N…", value_delimiter = ',')]
    layers: Vec<u32>,
    /// How many ranks, or which nodes besides this one in the order of ranks [default: all]
    #[arg(long, value_name = "N|NAME,NAME…", value_delimiter = ',')]
    nodes: Vec<String>,
    /// A node that takes no part; may be repeated
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    exclude: Vec<String>,
    /// `any` uses slow links too, Wi-Fi included
    #[arg(long, value_name = "WHICH", default_value = "fast")]
    link: LinkArg,
    /// Use only links over this interface, at either end; may be repeated
    #[arg(long = "interface", value_name = "NAME", value_delimiter = ',')]
    interfaces: Vec<String>,
    /// Use no link over this interface, at either end; may be repeated
    #[arg(long = "exclude-interface", value_name = "NAME", value_delimiter = ',')]
    exclude_interfaces: Vec<String>,
    /// Context in tokens [default: the model's own, at most 8192]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    context: Option<u32>,
    /// Longest prefill chunk in tokens
    #[arg(long, value_name = "TOKENS", default_value_t = 512, hide = true,
          value_parser = clap::value_parser!(u32).range(1..=8192))]
    chunk: u32,
    /// Compute type instead of the one that fits the device
    #[arg(long, hide = true)]
    dtype: Option<DtypeArg>,
    #[command(flatten)]
    node: NodeArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LinkArg {
    Fast,
    Any,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum DtypeArg {
    F32,
    F16,
    Bf16,
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
        let wish = self.wish(&home)?;
        let mut signals = Signals::new()?;
        let (stream, hosted) = self.node(home).await?;
        let outcome = attend(wish, stream, &mut signals).await;
        if let Some(hosted) = hosted {
            tokio::select! {
                () = hosted.stop() => {}
                () = signals.next() => {}
            }
        }
        outcome
    }

    fn wish(&self, home: &Path) -> Result<Serve, Failure> {
        let named = home.join("models").join(&self.model);
        let model = if self.model.is_dir() {
            self.model.clone()
        } else if named.is_dir() {
            named
        } else {
            return Err(Failure::usage(format!(
                "--model {}: there is no such directory, nor one under {}; `daisy model import` \
                 makes one from a GGUF file",
                self.model.display(),
                home.join("models").display()
            )));
        };
        Ok(Serve {
            // The node has another working directory.
            model: std::fs::canonicalize(&model).context("cannot resolve --model")?,
            host: self.host.clone(),
            port: self.port,
            peers: self.node.peer_addrs()?,
            layers: self.layers.clone(),
            nodes: self.nodes()?,
            exclude: self.exclude.clone(),
            links: LinkWish {
                any: self.link == LinkArg::Any,
                interfaces: self.interfaces.clone(),
                exclude_interfaces: self.exclude_interfaces.clone(),
            },
            context: self.context,
            chunk: self.chunk,
            dtype: self.dtype.map(|dtype| match dtype {
                DtypeArg::F32 => Dtype::F32,
                DtypeArg::F16 => Dtype::F16,
                DtypeArg::Bf16 => Dtype::Bf16,
            }),
        })
    }

    fn nodes(&self) -> Result<Nodes, Failure> {
        match &self.nodes[..] {
            [] => Ok(Nodes::All),
            [all] if all == "all" => Ok(Nodes::All),
            [one] if one.parse::<u32>().is_ok() => {
                if !self.layers.is_empty() {
                    let message =
                        "--layers says how many ranks there are; --nodes N does not go with it";
                    return Err(Failure::usage(message));
                }
                Ok(Nodes::Count(one.parse().unwrap_or(1)))
            }
            names => Ok(Nodes::Named(names.to_vec())),
        }
    }

    /// The node of this machine, or one that this process hosts.
    async fn node(&self, home: PathBuf) -> Result<(UnixStream, Option<Hosted>), Failure> {
        if let Ok(socket) = ipc::socket_path(&home)
            && let Ok(stream) = UnixStream::connect(socket).await
        {
            let flags = self.node.of_a_new_node();
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
            return Ok((stream, None));
        }
        let opened = self.node.open(home.clone())?;
        render::up(&opened.id(), opened.listens());
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(opened.run(async {
            let _ = stopped.await;
        }));
        let socket = ipc::socket_path(&home).context("cannot name the local socket")?;
        let stream = UnixStream::connect(socket).await.context("cannot reach the own node")?;
        Ok((stream, Some(Hosted { stop, task })))
    }
}

/// A node inside this process.
struct Hosted {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Hosted {
    async fn stop(self) {
        let _ = self.stop.send(());
        let _ = self.task.await;
    }
}

/// Asks the node to serve and shows what it says, until it stops or Ctrl+C was pressed twice.
async fn attend(wish: Serve, stream: UnixStream, signals: &mut Signals) -> Result<(), Failure> {
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
                Some(event) => render::event(&event),
                None => return Err(anyhow::anyhow!("the node went away").into()),
            },
            () = signals.next() => {
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

/// What running requests get after the first Ctrl+C.
const GRACE_MS: u64 = 5000;
