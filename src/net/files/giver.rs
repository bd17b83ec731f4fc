//! The side that has files.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use daisy_proto::files::{Answer, Ask, CHUNK_BYTES_MAX, FileEntry, Which};
use daisy_proto::{ALPN_FILES, NodeId};
use rustls::{ServerConnection, StreamOwned};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

use super::sealing::Sealing;
use super::wire::{self, WireError};
use crate::net::NetError;
use crate::net::door::Refusals;
use crate::net::tls::{self, Gate, KeyPair, Pin, Trust};

/// What a node has to give, and how fast. Called from threads that may block.
pub trait Shelf: Send + Sync {
    /// The files that are here, whole, of a checkpoint.
    fn list(&self, which: &Which) -> Vec<FileEntry>;
    /// One of them; none: it is not in the list.
    fn open(&self, which: &Which, name: &str) -> Option<io::Result<File>>;
    /// Bytes per second that a node may get now; none: as fast as it goes.
    fn pace(&self, to: &NodeId) -> Option<u64>;
}

/// Gives files until it is dropped.
#[derive(Debug)]
pub struct Giver {
    port: u16,
    accepting: AbortHandle,
    guests: Arc<Guests>,
}

impl Giver {
    /// Listens on a free port of `ip`. Must be called within a Tokio runtime.
    pub fn bind(
        ip: IpAddr,
        key: &KeyPair,
        trust: Arc<dyn Fn(&NodeId) -> bool + Send + Sync>,
        shelf: Arc<dyn Shelf>,
    ) -> Result<Self, NetError> {
        let addr = SocketAddr::new(ip, 0);
        let listener = listen(addr).map_err(|source| NetError::bind(addr, source))?;
        let port = listener.local_addr().map_err(|source| NetError::bind(addr, source))?.port();
        let guests = Arc::new(Guests::default());
        let house = House {
            key: key.clone(),
            trust,
            shelf,
            guests: Arc::clone(&guests),
            refusals: Arc::default(),
        };
        let accepting = tokio::spawn(accept(listener, Arc::new(house))).abort_handle();
        Ok(Self { port, accepting, guests })
    }

    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Giver {
    fn drop(&mut self) {
        self.accepting.abort();
        self.guests.see_off();
    }
}

fn listen(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    if addr.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// What every guest's thread shares.
struct House {
    key: KeyPair,
    trust: Arc<dyn Fn(&NodeId) -> bool + Send + Sync>,
    shelf: Arc<dyn Shelf>,
    guests: Arc<Guests>,
    refusals: Arc<Refusals>,
}

async fn accept(listener: TcpListener, house: Arc<House>) {
    loop {
        match listener.accept().await {
            Ok((stream, remote)) => {
                let Ok(stream) = stream.into_std() else { continue };
                let Some(place) = house.guests.take(&stream) else {
                    house.refusals.record(remote, "came when all places for files were taken");
                    continue;
                };
                let house = Arc::clone(&house);
                let thread = std::thread::Builder::new().name("files".to_owned());
                // Without a thread the place is free again, and the guest sees a closed connection.
                let _ = thread.spawn(move || welcome(&house, stream, remote, &place));
            }
            Err(error) => {
                // Out of descriptors, say: wait for some to come back.
                tracing::warn!(%error, "cannot accept who asks for files");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Those who are connected, by number.
#[derive(Debug, Default)]
struct Guests {
    inside: Mutex<Inside>,
}

#[derive(Debug, Default)]
struct Inside {
    next: u64,
    /// The connection, and whether it has shown its key.
    all: BTreeMap<u64, (TcpStream, bool)>,
    closed: bool,
}

#[derive(Debug)]
struct Place {
    guests: Arc<Guests>,
    number: u64,
}

impl Guests {
    /// The oldest of those who have not shown their key gives way when all places are taken.
    fn take(self: &Arc<Self>, stream: &TcpStream) -> Option<Place> {
        let mut inside = self.inside();
        if inside.closed {
            return None;
        }
        if inside.all.len() >= GUESTS_MAX {
            let unknown = inside.all.iter().find(|(_, (_, known))| !known);
            let number = *unknown?.0;
            let (stream, _) = inside.all.remove(&number)?;
            let _ = stream.shutdown(Shutdown::Both);
        }
        let number = inside.next;
        inside.next += 1;
        inside.all.insert(number, (stream.try_clone().ok()?, false));
        Some(Place { guests: Arc::clone(self), number })
    }

    fn see_off(&self) {
        let mut inside = self.inside();
        inside.closed = true;
        for (stream, _) in std::mem::take(&mut inside.all).into_values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        // Every change is one step, so a poisoned lock holds nothing half-done.
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    fn is_known(&self) {
        if let Some((_, known)) = self.guests.inside().all.get_mut(&self.number) {
            *known = true;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.guests.inside().all.remove(&self.number);
    }
}

fn welcome(house: &House, stream: TcpStream, remote: SocketAddr, place: &Place) {
    let trust = Arc::clone(&house.trust);
    let trust: Trust = Arc::new(move |key| trust(&NodeId(*key)));
    let pin = Pin::for_guest(&[Gate::always(ALPN_FILES, trust)]);
    let guest = match handshake(house, stream, &pin) {
        Ok(guest) => guest,
        Err(error) => {
            match pin.shown().filter(|shown| !shown.trusted) {
                Some(shown) => {
                    let key = NodeId(shown.key);
                    let why = format!("wanted files with the key {key}, which is not trusted");
                    house.refusals.record(remote, &why);
                }
                None => house.refusals.record(remote, &format!("failed its handshake: {error}")),
            }
            return;
        }
    };
    let Some(shown) = pin.shown() else { return };
    place.is_known();
    let peer = NodeId(shown.key);
    tracing::debug!(peer = %peer.short(), %remote, "a node asks for files");
    if let Err(error) = serve(house, guest, &peer) {
        tracing::debug!(peer = %peer.short(), %error, "it asks for no more files");
    }
}

type Guest = StreamOwned<ServerConnection, TcpStream>;

fn handshake(house: &House, mut stream: TcpStream, pin: &Arc<Pin>) -> io::Result<Guest> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    let config = tls::server_config(&house.key, Arc::clone(pin)).map_err(io::Error::other)?;
    let mut tls = ServerConnection::new(Arc::new(config)).map_err(io::Error::other)?;
    let until = Instant::now() + HANDSHAKE_MAX;
    while tls.is_handshaking() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        stream.set_write_timeout(Some(left))?;
        if tls.wants_write() {
            tls.write_tls(&mut stream)?;
        } else if tls.read_tls(&mut stream)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        } else if let Err(error) = tls.process_new_packets() {
            // The other end is told why, if it still listens.
            let _ = tls.write_tls(&mut stream);
            return Err(io::Error::other(error));
        }
    }
    // A whole chunk in one system call.
    tls.set_buffer_limit(Some(CHUNK_BYTES_MAX + (64 << 10)));
    stream.set_read_timeout(Some(IDLE_MAX))?;
    stream.set_write_timeout(Some(STALLED_MAX))?;
    Ok(StreamOwned::new(tls, stream))
}

#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("its key is no longer trusted")]
    NotTrusted,
    #[error("the file was cut short while it was given")]
    Short,
}

fn serve(house: &House, mut guest: Guest, peer: &NodeId) -> Result<(), ServeError> {
    let mut unused = Vec::new();
    loop {
        let ask: Ask = match wire::read(&mut guest, &mut unused) {
            Ok(ask) => ask,
            // It has all it wanted.
            Err(WireError::Io(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        // It may have been unpaired since it came.
        if !(house.trust)(peer) {
            return Err(ServeError::NotTrusted);
        }
        match ask {
            Ask::List(which) => {
                wire::write(&mut guest, &Answer::Files(house.shelf.list(&which)), &[])?;
            }
            Ask::Get { which, name, from, sealed } => match open(house, &which, &name, from) {
                Ok((file, bytes)) => give(house, &mut guest, peer, &file, from..bytes, sealed)?,
                Err(why) => wire::write(&mut guest, &Answer::Refused(why), &[])?,
            },
        }
    }
}

fn open(house: &House, which: &Which, name: &str, from: u64) -> Result<(File, u64), String> {
    let opened = house.shelf.open(which, name);
    let file = opened.ok_or_else(|| "there is no such file here".to_owned())?;
    let sized = file.and_then(|file| file.metadata().map(|metadata| (file, metadata.len())));
    let (file, bytes) = sized.map_err(|error| format!("the file cannot be read: {error}"))?;
    if from > bytes {
        return Err(format!("the file has {bytes} bytes here, and {from} are there already"));
    }
    Ok((file, bytes))
}

/// Sends the bytes of a file in this range, which ends where the file does.
fn give(
    house: &House,
    guest: &mut Guest,
    peer: &NodeId,
    file: &File,
    range: std::ops::Range<u64>,
    sealed: bool,
) -> Result<(), ServeError> {
    let began = |error: io::Error| ServeError::Wire(error.into());
    let sealing = if sealed {
        // A handle of its own, so that the two do not share a position.
        let before = file.try_clone().map_err(began)?;
        Some(Sealing::after(Before { file: before, at: 0, end: range.start }).map_err(began)?)
    } else {
        None
    };
    let mut pace = Pace::new(house, peer);
    let mut at = range.start;
    while at < range.end {
        pace.wait(guest)?;
        let wanted = (range.end - at).min(CHUNK_BYTES_MAX as u64);
        let mut chunk = vec![0; usize::try_from(wanted).unwrap_or(CHUNK_BYTES_MAX)];
        file.read_exact_at(&mut chunk, at).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => ServeError::Short,
            _ => ServeError::Wire(error.into()),
        })?;
        at += wanted;
        pace.took(wanted);
        let chunk = Arc::new(chunk);
        wire::write(guest, &Answer::Chunk, &chunk)?;
        let mut waiting = sealing.as_ref().and_then(|sealing| sealing.try_push(chunk));
        // What came before a taken-up file has to be hashed first.
        while let (Some(sealing), Some(chunk)) = (&sealing, waiting.take()) {
            std::thread::sleep(SEAL_WAIT);
            pace.say_something(guest)?;
            waiting = sealing.try_push(chunk);
        }
    }
    let sha256 = match sealing {
        Some(sealing) => Some(end(sealing, guest)?),
        None => None,
    };
    Ok(wire::write(guest, &Answer::End { sha256 }, &[])?)
}

/// What is still to be hashed takes a while where a file was nearly there.
fn end(sealing: Sealing, guest: &mut Guest) -> Result<[u8; 32], ServeError> {
    let (done_in, done) = std::sync::mpsc::sync_channel(1);
    std::thread::spawn(move || done_in.send(sealing.end()));
    loop {
        match done.recv_timeout(SAY_EVERY) {
            Ok(sha256) => return Ok(sha256.map_err(WireError::from)?),
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                wire::write(guest, &Answer::Chunk, &[])?;
            }
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => {
                return Err(WireError::from(io::Error::other("hashing ended early")).into());
            }
        }
    }
}

/// Holds one guest to what it may get, and notices when it is no longer trusted.
struct Pace<'a> {
    house: &'a House,
    peer: &'a NodeId,
    bytes_per_s: Option<u64>,
    /// When the next chunk may go.
    due: Instant,
    looked: Instant,
    said: Instant,
}

impl<'a> Pace<'a> {
    fn new(house: &'a House, peer: &'a NodeId) -> Self {
        let now = Instant::now();
        Self { house, peer, bytes_per_s: house.shelf.pace(peer), due: now, looked: now, said: now }
    }

    fn wait(&mut self, guest: &mut Guest) -> Result<(), ServeError> {
        loop {
            let now = Instant::now();
            if now - self.looked >= LOOK_EVERY {
                self.looked = now;
                self.bytes_per_s = self.house.shelf.pace(self.peer);
                if !(self.house.trust)(self.peer) {
                    return Err(ServeError::NotTrusted);
                }
            }
            let left = self.due.saturating_duration_since(now);
            if left.is_zero() || self.bytes_per_s.is_none() {
                self.said = now;
                return Ok(());
            }
            std::thread::sleep(left.min(LOOK_EVERY));
            self.say_something(guest)?;
        }
    }

    fn took(&mut self, bytes: u64) {
        let rate = self.bytes_per_s.unwrap_or(u64::MAX).max(1);
        let takes = Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / rate);
        // What was not used up is not owed.
        self.due = self.due.max(Instant::now()) + takes;
    }

    /// Who waits must know that this end is alive.
    fn say_something(&mut self, guest: &mut Guest) -> Result<(), ServeError> {
        if self.said.elapsed() >= SAY_EVERY {
            self.said = Instant::now();
            wire::write(guest, &Answer::Chunk, &[])?;
        }
        Ok(())
    }
}

/// A part of a file, read by place: clones of a handle share one position.
struct Before {
    file: File,
    at: u64,
    end: u64,
}

impl Read for Before {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end - self.at).unwrap_or(usize::MAX);
        let wanted = left.min(into.len());
        let count = self.file.read_at(&mut into[..wanted], self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

/// Of each a thread and some megabytes.
const GUESTS_MAX: usize = 16;
const BACKLOG: i32 = 16;
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// Between two asks.
const IDLE_MAX: Duration = Duration::from_mins(1);
/// A disk over there that takes nothing for so long is full or gone.
const STALLED_MAX: Duration = Duration::from_secs(30);
/// Trust and pace are looked at this often while a file goes out.
const LOOK_EVERY: Duration = Duration::from_millis(250);
const SEAL_WAIT: Duration = Duration::from_millis(2);
const SAY_EVERY: Duration = Duration::from_secs(1);
