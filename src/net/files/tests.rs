//! Two nodes on loopback, with real TLS and real sockets.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use aws_lc_rs::digest::{SHA256, digest};
use daisy_proto::NodeId;
use daisy_proto::control::Way;
use daisy_proto::files::{FileEntry, Which};

use super::*;
use crate::net::KeyPair;

const WHICH: Which = Which::Digest([7; 32]);

/// One checkpoint of files in a folder.
struct Folder {
    files: BTreeMap<String, PathBuf>,
    pace: AtomicU64,
}

impl Shelf for Folder {
    fn list(&self, which: &Which) -> Vec<FileEntry> {
        let all = self.files.iter().filter(|_| *which == WHICH);
        let entry = |(name, path): (&String, &PathBuf)| FileEntry {
            name: name.clone(),
            bytes: std::fs::metadata(path).expect("a file").len(),
        };
        all.map(entry).collect()
    }

    fn open(&self, which: &Which, name: &str) -> Option<std::io::Result<File>> {
        (*which == WHICH).then_some(())?;
        Some(File::open(self.files.get(name)?))
    }

    fn pace(&self, _to: &NodeId) -> Option<u64> {
        Some(self.pace.load(Ordering::Relaxed)).filter(|pace| *pace > 0)
    }
}

struct House {
    giver: Giver,
    id: NodeId,
    guest: KeyPair,
    trusted: Arc<AtomicBool>,
    folder: Arc<Folder>,
    bytes: Vec<u8>,
    dir: tempfile::TempDir,
}

impl House {
    fn new() -> Self {
        let (own, guest) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let dir = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> =
            (0..5_000_003_u32).map(|n| (n.wrapping_mul(n) >> 7).to_le_bytes()[0]).collect();
        let path = dir.path().join("model.safetensors");
        std::fs::write(&path, &bytes).unwrap();
        std::fs::write(dir.path().join("secret"), "secret").unwrap();
        let files = BTreeMap::from([("model.safetensors".to_owned(), path)]);
        let folder = Arc::new(Folder { files, pace: AtomicU64::new(0) });
        let trusted = Arc::new(AtomicBool::new(true));
        let (welcome, known) = (NodeId(guest.public()), Arc::clone(&trusted));
        let trust = Arc::new(move |id: &NodeId| *id == welcome && known.load(Ordering::Relaxed));
        let shelf = Arc::clone(&folder);
        let giver = Giver::bind(Ipv4Addr::LOCALHOST.into(), &own, trust, shelf).unwrap();
        Self { giver, id: NodeId(own.public()), guest, trusted, folder, bytes, dir }
    }

    fn ways(&self) -> Vec<Way> {
        vec![SocketAddr::from((Ipv4Addr::LOCALHOST, self.giver.port())).into()]
    }

    fn taker(&self) -> Taker {
        Taker::connect(&self.guest, self.id, &self.ways()).expect("it answers")
    }

    fn sha256(&self) -> [u8; 32] {
        digest(&SHA256, &self.bytes).as_ref().try_into().unwrap()
    }
}

fn take(taker: &mut Taker, from: u64) -> (Vec<u8>, Result<Option<[u8; 32]>, TakeError>) {
    let mut got = Vec::new();
    let outcome = taker.take(&WHICH, "model.safetensors", from, true, &mut |bytes| {
        got.extend_from_slice(bytes);
        ControlFlow::Continue(())
    });
    (got, outcome)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_comes_whole_and_from_anywhere_on() {
    let house = House::new();
    let mut taker = house.taker();
    let total = house.bytes.len() as u64;
    let entry = FileEntry { name: "model.safetensors".to_owned(), bytes: total };
    assert_eq!(taker.list(&WHICH).unwrap(), [entry]);
    assert_eq!(taker.list(&Which::Digest([8; 32])).unwrap(), []);
    for from in [0, 1, 3 << 20, total] {
        let (got, sealed) = take(&mut taker, from);
        assert!(got == house.bytes[usize::try_from(from).unwrap()..], "from {from}");
        assert_eq!(sealed.unwrap(), Some(house.sha256()), "of the whole file, from {from}");
    }
    let (got, beyond) = take(&mut taker, total + 1);
    assert!(got.is_empty() && matches!(beyond, Err(TakeError::Refused(_))), "{beyond:?}");
    let unsealed =
        taker.take(&WHICH, "model.safetensors", 0, false, &mut |_| ControlFlow::Continue(()));
    assert_eq!(unsealed.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_is_not_listed_leads_nowhere() {
    let house = House::new();
    let mut taker = house.taker();
    let absolute = house.dir.path().join("secret");
    for name in ["secret", "../secret", absolute.to_str().unwrap(), "", "/etc/passwd", "."] {
        let refused = taker.take(&WHICH, name, 0, true, &mut |_| panic!("bytes of {name}"));
        assert!(matches!(refused, Err(TakeError::Refused(_))), "{name}: {refused:?}");
    }
    let other = Which::Commit { repo: "a/b".to_owned(), commit: "../..".to_owned() };
    let refused = taker.take(&other, "model.safetensors", 0, true, &mut |_| panic!("bytes"));
    assert!(matches!(refused, Err(TakeError::Refused(_))), "{refused:?}");
    // The connection still works.
    assert!(take(&mut taker, 0).1.is_ok());
}

/// Passes bytes on until it has passed so many towards the taker, which it counts; then it cuts.
fn relay(to: u16, at_most: u64) -> (u16, Arc<AtomicU64>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let passed = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&passed);
    std::thread::spawn(move || {
        for near in listener.incoming() {
            let mut near = near.unwrap();
            let mut far = TcpStream::connect((Ipv4Addr::LOCALHOST, to)).unwrap();
            let (mut back, mut forth) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut back, &mut forth));
            let mut buffer = vec![0; 64 << 10];
            while counted.load(Ordering::Relaxed) < at_most {
                let Ok(count @ 1..) = far.read(&mut buffer) else { break };
                counted.fetch_add(count as u64, Ordering::Relaxed);
                if near.write_all(&buffer[..count]).is_err() {
                    break;
                }
            }
            let _ =
                (near.shutdown(std::net::Shutdown::Both), far.shutdown(std::net::Shutdown::Both));
        }
    });
    (port, passed)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_connection_keeps_what_came() {
    let house = House::new();
    let (port, _) = relay(house.giver.port(), 2_500_000);
    let way = SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into();
    let mut taker = Taker::connect(&house.guest, house.id, &[way]).expect("it answers");
    let (mut got, outcome) = take(&mut taker, 0);
    assert!(matches!(outcome, Err(TakeError::Cut(_))), "{outcome:?}");
    assert!(!got.is_empty() && got.len() < house.bytes.len(), "{} bytes", got.len());
    let (rest, outcome) = take(&mut house.taker(), got.len() as u64);
    got.extend(rest);
    assert!(got == house.bytes, "the two parts are the file");
    assert_eq!(outcome.unwrap(), Some(house.sha256()));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_not_paired_gets_nothing() {
    let house = House::new();
    let stranger = KeyPair::generate().unwrap();
    let (port, passed) = relay(house.giver.port(), u64::MAX);
    let way: Way = SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into();
    // Its own handshake ends before the other end has looked at its key.
    if let Ok(mut taker) = Taker::connect(&stranger, house.id, std::slice::from_ref(&way)) {
        taker.list(&WHICH).expect_err("no list for a stranger");
    }
    let handshake = passed.load(Ordering::Relaxed);
    assert!(handshake > 0 && handshake < 2000, "a handshake and an alert, not {handshake} bytes");
    // Another node at the address is noticed too.
    let other = KeyPair::generate().unwrap();
    let wrong = Taker::connect(&house.guest, NodeId(other.public()), &[way]);
    assert!(wrong.unwrap_err().to_string().contains("another node answers"));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_unpaired_gets_no_more() {
    let house = House::new();
    house.folder.pace.store(1 << 20, Ordering::Relaxed);
    let mut taker = house.taker();
    let mut got = 0;
    let outcome = taker.take(&WHICH, "model.safetensors", 0, true, &mut |bytes| {
        got += bytes.len();
        house.trusted.store(false, Ordering::Relaxed);
        ControlFlow::Continue(())
    });
    assert!(matches!(outcome, Err(TakeError::Cut(_))), "{outcome:?}");
    assert!(got < house.bytes.len(), "{got} bytes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pace_is_kept_and_ends_with_its_reason() {
    let house = House::new();
    house.folder.pace.store(4_000_000, Ordering::Relaxed);
    let began = Instant::now();
    let (got, outcome) = take(&mut house.taker(), 0);
    outcome.unwrap();
    assert_eq!(got.len(), house.bytes.len());
    // Four chunks are owed before the last one goes.
    assert!(began.elapsed() >= Duration::from_millis(900), "{:?}", began.elapsed());
    house.folder.pace.store(1, Ordering::Relaxed);
    let mut count = 0;
    let stopped = house.taker().take(&WHICH, "model.safetensors", 0, false, &mut |bytes| {
        count += bytes.len();
        house.folder.pace.store(0, Ordering::Relaxed);
        ControlFlow::Continue(())
    });
    stopped.unwrap();
    assert_eq!(count, house.bytes.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_dialers_hold_no_place_that_another_one_needs() {
    let house = House::new();
    let dial = || TcpStream::connect((Ipv4Addr::LOCALHOST, house.giver.port())).unwrap();
    let _silent: Vec<TcpStream> = (0..40).map(|_| dial()).collect();
    assert!(take(&mut house.taker(), 0).1.is_ok());
    let mut known: Vec<Taker> = (0..3).map(|_| house.taker()).collect();
    for taker in &mut known {
        assert!(take(taker, 4 << 20).1.is_ok(), "several at once");
    }
    let ways = house.ways();
    let (guest, id) = (house.guest.clone(), house.id);
    drop(house.giver);
    let gone = Taker::connect(&guest, id, &ways);
    assert!(matches!(gone, Err(TakeError::Unreachable(_))), "{gone:?}");
    assert!(known[0].list(&WHICH).is_err(), "connections end with the giver");
}
