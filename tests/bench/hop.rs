//! What a hop costs: N bytes there and N bytes back, over the product's edges and over bare TCP.
//!
//! Two processes stand for two ranks: `hop serve ADDR` echoes, `hop drive ADDR FROM LABEL ROUNDS BYTES…`
//! measures and prints one JSON object per round and kind. An edge each way, as in a chain of two: the
//! thread that would compute sends and receives, and nothing here knows the wire. Both kinds run by turns
//! over the same path, so a ratio of the two holds on a busy machine too. `scripts/bench hop` starts this.

#![expect(clippy::print_stdout, reason = "rows are what this program is for")]

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use bytes::Bytes;
use daisy::net::{
    EdgeConfig, EdgeEvent, EdgeListener, Inbox, IncomingEdge, KeyPair, OutgoingEdge, Reactor, edge,
};
use daisy_proto::control::RankKey;
use daisy_proto::{CloseReason, Dtype, PipelineId, Rank, Row, SeqId, Step};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["serve", addr] => serve(addr.parse()?),
        ["drive", addr, from, label, rounds, ref sizes @ ..] => {
            let sizes = sizes.iter().map(|size| size.parse()).collect::<Result<Vec<usize>, _>>()?;
            drive(addr.parse()?, from.parse()?, label, rounds.parse()?, &sizes)
        }
        // `cargo bench` without arguments: scripts/bench is the way in.
        _ => Ok(()),
    }
}

/// Echoes what the driver orders until it leaves.
fn serve(addr: SocketAddr) -> Outcome<()> {
    let listener = TcpListener::bind(addr)?;
    println!("ready");
    let (stream, _) = listener.accept()?;
    let mut raw = Raw::new(stream)?;
    let mut ring = Ring::join(&mut raw, Rank(1), addr.ip())?;
    while let Some(order) = raw.order()? {
        for _ in 0..order.count {
            match order.kind {
                Kind::Raw => raw.echo(order.bytes)?,
                Kind::Link => {
                    let (step, payload) = ring.next()?;
                    ring.out.send(step, payload)?;
                }
            }
        }
    }
    ring.leave();
    Ok(())
}

fn drive(
    addr: SocketAddr,
    from: IpAddr,
    label: &str,
    rounds: usize,
    sizes: &[usize],
) -> Outcome<()> {
    let mut raw = Raw::new(connect(addr)?)?;
    let mut ring = Ring::join(&mut raw, Rank(0), from)?;
    for &bytes in sizes {
        for round in 0..=rounds {
            for kind in [Kind::Raw, Kind::Link] {
                let count = iterations(bytes, label, round);
                raw.send_order(&Order { kind, bytes, count })?;
                let mut times = Vec::with_capacity(count);
                let payload = Bytes::from(vec![7; bytes]);
                for _ in 0..count {
                    let began = Instant::now();
                    match kind {
                        Kind::Raw => raw.ping(&payload)?,
                        Kind::Link => ring.ping(&payload)?,
                    }
                    times.push(began.elapsed());
                }
                // The first round warms windows, caches and MTU discovery.
                if round > 0 {
                    print_row(label, bytes, round, kind, &mut times);
                }
            }
        }
    }
    ring.leave();
    Ok(())
}

/// Enough for a median; a slow path gets fewer.
fn iterations(bytes: usize, label: &str, round: usize) -> usize {
    let count = match bytes {
        0..=16_384 => 2000,
        16_385..=131_072 => 800,
        _ => 100,
    };
    let count = if label.starts_with("rtt") { count / 4 } else { count };
    if round == 0 { count / 4 } else { count }
}

fn print_row(path: &str, bytes: usize, round: usize, kind: Kind, times: &mut [Duration]) {
    times.sort_unstable();
    let at = |share: usize| times[(times.len() - 1) * share / 100].as_secs_f64() * 1e6;
    let (p50, p99, count) = (at(50), at(99), times.len());
    let kind = if kind == Kind::Raw { "raw" } else { "link" };
    println!(
        r#"{{"path": "{path}", "bytes": {bytes}, "round": {round}, "kind": "{kind}", "p50_us": {p50:.2}, "p99_us": {p99:.2}, "count": {count}}}"#
    );
}

/// The server may still be starting.
fn connect(addr: SocketAddr) -> io::Result<TcpStream> {
    let until = Instant::now() + PATIENCE;
    loop {
        match TcpStream::connect(addr) {
            Err(_) if Instant::now() < until => std::thread::sleep(Duration::from_millis(20)),
            outcome => return outcome,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Raw,
    Link,
}

struct Order {
    kind: Kind,
    bytes: usize,
    count: usize,
}

/// Bare TCP, blocking: what the edges are compared with, and how the two processes agree.
struct Raw {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Raw {
    fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::new() })
    }

    fn ping(&mut self, payload: &[u8]) -> io::Result<()> {
        self.stream.write_all(payload)?;
        self.buffer.resize(payload.len(), 0);
        self.stream.read_exact(&mut self.buffer)
    }

    fn echo(&mut self, bytes: usize) -> io::Result<()> {
        self.buffer.resize(bytes, 0);
        self.stream.read_exact(&mut self.buffer)?;
        self.stream.write_all(&self.buffer)
    }

    fn send_order(&mut self, order: &Order) -> io::Result<()> {
        let mut bytes = [0; 17];
        bytes[0] = u8::from(order.kind == Kind::Link);
        bytes[1..9].copy_from_slice(&(order.bytes as u64).to_le_bytes());
        bytes[9..].copy_from_slice(&(order.count as u64).to_le_bytes());
        self.stream.write_all(&bytes)
    }

    /// None when the driver has left.
    fn order(&mut self) -> Outcome<Option<Order>> {
        let mut bytes = [0; 17];
        match self.stream.read_exact(&mut bytes) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        let kind = if bytes[0] == 0 { Kind::Raw } else { Kind::Link };
        let number = |at: usize| -> Outcome<usize> {
            Ok(u64::from_le_bytes(bytes[at..at + 8].try_into()?).try_into()?)
        };
        Ok(Some(Order { kind, bytes: number(1)?, count: number(9)? }))
    }

    fn exchange(&mut self, mine: &[u8; 34]) -> io::Result<[u8; 34]> {
        self.stream.write_all(mine)?;
        let mut theirs = [0; 34];
        self.stream.read_exact(&mut theirs)?;
        Ok(theirs)
    }
}

/// The two edges of a rank in a chain of two.
struct Ring {
    out: OutgoingEdge,
    incoming: IncomingEdge,
    events: Inbox<EdgeEvent>,
    number: u64,
}

impl Ring {
    fn join(raw: &mut Raw, me: Rank, ip: IpAddr) -> Outcome<Self> {
        let key = KeyPair::generate()?;
        let listener = EdgeListener::bind(SocketAddr::new(ip, 0), &key)?;
        let mut mine = [0; 34];
        mine[..32].copy_from_slice(&key.public());
        mine[32..].copy_from_slice(&listener.port().to_le_bytes());
        let theirs = raw.exchange(&mine)?;
        let peer_key = RankKey(theirs[..32].try_into()?);
        let port = u16::from_le_bytes(theirs[32..].try_into()?);
        let peer_addr = SocketAddr::new(raw.stream.peer_addr()?.ip(), port);
        let peer = Rank(1 - me.0);
        let config =
            EdgeConfig { pipeline: PIPELINE, me, peer, peer_key, connect_timeout: PATIENCE };
        let reactor = Reactor::start()?;
        let (queue, events) = reactor.inbox(64);
        let sink = || {
            let queue = queue.clone();
            move |event| {
                // Nobody reads once the bench is over.
                let _ = queue.send(event);
            }
        };
        let incoming = edge::accept(&reactor, listener, config, sink());
        let out = edge::dial(&reactor, &key, vec![peer_addr], config, sink());
        for _ in 0..2 {
            match events.recv() {
                Some(EdgeEvent::Open) => {}
                other => return Err(format!("an edge did not open: {other:?}").into()),
            }
        }
        // A step can overtake the other edge's opening: both sides first say that all is open.
        raw.exchange(&mine)?;
        incoming.set_ready();
        out.set_ready();
        Ok(Self { out, incoming, events, number: 0 })
    }

    fn ping(&mut self, payload: &Bytes) -> Outcome<()> {
        let step = step(self.number, payload.len())?;
        self.number += 1;
        self.out.send(step, payload.clone())?;
        let (_, back) = self.next()?;
        if back.len() == payload.len() { Ok(()) } else { Err("the echo has another length".into()) }
    }

    fn next(&mut self) -> Outcome<(Step, Bytes)> {
        match self.events.recv() {
            Some(EdgeEvent::Step(step, payload)) => Ok((step, payload)),
            other => Err(format!("the edge ended: {other:?}").into()),
        }
    }

    fn leave(self) {
        self.out.close(CloseReason::Done);
        self.incoming.close(CloseReason::Done);
    }
}

/// A decode step of one sequence up to 64 KiB, of several sequences above.
fn step(number: u64, bytes: usize) -> Outcome<Step> {
    let tokens = bytes.div_ceil(65_536);
    let width = u32::try_from(bytes / tokens / Dtype::F32.size_bytes())?;
    let tokens = u32::try_from(tokens)?;
    let row = |seq| Row { seq: SeqId(seq), first: 0, count: 1, logits: true };
    let rows = (0..u64::from(tokens)).map(row).collect();
    let release = Vec::new();
    Ok(Step { pipeline: PIPELINE, number, rows, release, dtype: Dtype::F32, tokens, width })
}

const PIPELINE: PipelineId = PipelineId(1);
const PATIENCE: Duration = Duration::from_secs(20);
