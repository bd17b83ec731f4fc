//! The rank process: one shard, its engine thread, its two edges, and the socket to its node.
//!
//! Threads: the main thread runs the engine and owns every array, and while it waits it runs the edges;
//! one thread reads the node's socket and ends the process when it closes; one runs the edges while the
//! engine computes, and one watches that a step ends. All causes of work meet in one [`Event`] queue. It knows nothing of text or plans.
//! Start at [`run`].

mod chain;
mod edges;
mod watchdog;

use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use daisy_proto::Rank;
use daisy_proto::control::RankKey;
use daisy_proto::local::{FromRank, RankStart, ToRank};

use self::chain::Chain;
use self::edges::{Edges, Neighbours};
use self::watchdog::Watchdog;
use crate::engine::{self, Engine, EngineError, LoadRequest};
use crate::ipc::{BlockingReader, BlockingWriter, IpcError};
use crate::model::{ConfigError, ModelConfig};
use crate::net::{EdgeEvent, EdgeListener, Inbox, KeyPair, NetError, Post, Reactor};
use crate::store::{Checkpoint, CheckpointError};

/// Everything that makes a rank work.
#[derive(Debug)]
pub(crate) enum Event {
    Node(ToRank),
    Previous(EdgeEvent),
    Next(EdgeEvent),
}

#[derive(Debug, thiserror::Error)]
pub enum RankError {
    #[error("this command is for daisy itself: `daisy cluster up` starts ranks")]
    NoNode,
    #[error(transparent)]
    Node(#[from] IpcError),
    #[error("the node sent {0} out of turn")]
    OutOfTurn(&'static str),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Net(#[from] NetError),
    #[error(transparent)]
    Key(#[from] crate::net::KeyError),
    #[error("the edges of this rank cannot run: {0}")]
    Reactor(std::io::Error),
    #[error("{message}")]
    Edge { neighbour: Rank, message: String },
    #[error(transparent)]
    Schedule(#[from] crate::schedule::ScheduleError),
    #[error("frame of {0}")]
    Frame(#[from] daisy_proto::hidden::HiddenSizeError),
}

/// Runs the rank whose node is at the other end of standard input, until it is told to unload.
pub fn run() -> Result<(), RankError> {
    let reactor = Reactor::start().map_err(RankError::Reactor)?;
    let (mut node, events, queue) = attach(&reactor)?;
    // Without one of its threads a rank would wait for ever. An end is something its node sees.
    std::panic::set_hook(Box::new(|panic| {
        tracing::error!("a bug: {}", panic.to_string().replace('\n', " "));
        engine::exit_now(EXIT_BUG);
    }));
    let outcome = serve(&mut node, &reactor, &events, &queue);
    if let Err(error) = &outcome {
        let blame = match error {
            RankError::Edge { neighbour, .. } => Some(*neighbour),
            _ => None,
        };
        // The node may be gone already; then the reader thread ends this process.
        let _ = node.write(&FromRank::Failed { message: error.to_string(), blame });
    }
    outcome
}

/// Takes the socket that the node gave as standard input and starts its reader.
fn attach(reactor: &Reactor) -> Result<(BlockingWriter, Inbox<Event>, Post<Event>), RankError> {
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        return Err(RankError::NoNode);
    }
    let socket = stdin.as_fd().try_clone_to_owned().map_err(IpcError::from)?;
    let socket = UnixStream::from(socket);
    if socket.peer_addr().is_err() {
        return Err(RankError::NoNode);
    }
    let node = BlockingWriter::new(socket.try_clone().map_err(IpcError::from)?);
    let (queue, events) = reactor.inbox(QUEUE_MAX);
    let to_engine = queue.clone();
    std::thread::spawn(move || {
        let mut reader = BlockingReader::new(socket);
        // The engine thread may be deep in a computation: when the node is gone, the process ends
        // from here, and the system takes all memory back.
        while let Ok(Some(message)) = reader.read::<ToRank>() {
            if to_engine.send(Event::Node(message)).is_err() {
                break;
            }
        }
        engine::exit_now(0)
    });
    Ok((node, events, queue))
}

fn serve(
    node: &mut BlockingWriter,
    reactor: &Reactor,
    events: &Inbox<Event>,
    queue: &Post<Event>,
) -> Result<(), RankError> {
    let Some(ToRank::Start(mut start)) = next_from_node(events) else {
        return Err(RankError::OutOfTurn("something other than a start"));
    };
    // A rank never holds its node's identity: this key lives as long as the pipeline.
    let key = KeyPair::generate()?;
    // It listens before it loads, so that neighbours can connect meanwhile.
    let listener = EdgeListener::bind(start.bind, &key)?;
    let listening = FromRank::Listening { key: RankKey(key.public()), port: listener.port() };
    node.write(&listening)?;
    let neighbours = match next_from_node(events) {
        Some(ToRank::Connect { previous, next, ways }) => Neighbours { previous, next, ways },
        Some(ToRank::Unload) | None => return Ok(()),
        Some(_) => return Err(RankError::OutOfTurn("work before a connect")),
    };
    let edges = Edges::open(&start, reactor, listener, &key, neighbours, queue);
    engine::wire(start.needs_bytes.saturating_add(WIRED_MARGIN));
    let engine = load(&start, node)?;
    if !engine::on_gpu()? {
        start.chunk = start.chunk.min(CPU_CHUNK_TOKENS);
    }
    let watchdog = watchdog(node.try_clone()?);
    Chain::new(&start, engine, edges, node, watchdog).run(events)
}

/// Ends this process when a step does not end, and says so first: its edges live on, so nobody else
/// could tell which of the ranks it is.
fn watchdog(mut node: BlockingWriter) -> Watchdog {
    Watchdog::start(STEP_MAX, move || {
        let seconds = STEP_MAX.as_secs();
        let message = format!(
            "a step has not ended within {seconds} s: the device hangs, or this machine swaps"
        );
        tracing::error!("{message}");
        let _ = node.write(&FromRank::Failed { message, blame: None });
        engine::exit_now(EXIT_HUNG);
    })
}

fn load(start: &RankStart, node: &mut BlockingWriter) -> Result<Engine, RankError> {
    let checkpoint = Checkpoint::open(&start.checkpoint)?;
    let request = LoadRequest {
        config: ModelConfig::parse(&checkpoint.config_json)?,
        files: checkpoint.files,
        shard: start.shard,
        is_last: start.rank.0 + 1 == start.world,
        dtype: start.dtype,
    };
    let mut lost = None;
    let engine = Engine::load(&request, &mut |progress| {
        lost = node.write(&FromRank::Loading(progress)).err();
    })?;
    lost.map_or(Ok(engine), |error| Err(error.into()))
}

/// The node's next message. Edges do not exist yet, so nothing else can come.
fn next_from_node(events: &Inbox<Event>) -> Option<ToRank> {
    match events.recv() {
        Some(Event::Node(message)) => Some(message),
        Some(Event::Previous(_) | Event::Next(_)) | None => None,
    }
}

/// Beyond what the plan knows of: what MLX keeps for its next arrays.
const WIRED_MARGIN: u64 = 512 << 20;
const EXIT_BUG: i32 = 70;
const EXIT_HUNG: i32 = 75;
/// The first steps on a GPU compile its kernels, which has taken 79 s; a chunk of a prompt takes a slow
/// machine half a minute.
const STEP_MAX: Duration = Duration::from_mins(5);
/// A cancelled prompt is computed to the end of the chunks that are on their way. A CPU takes seconds
/// for as many tokens as a GPU takes at once, and gains nothing by longer chunks.
const CPU_CHUNK_TOKENS: u32 = 64;
/// Admissions and cancellations of a node's full queue (64 each), the frames of both edges (16
/// each), with room.
const QUEUE_MAX: usize = 1024;
