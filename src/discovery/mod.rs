//! Who else is on the network: `_daisy._udp.local.` by multicast DNS.
//!
//! It introduces and no more: whether a node is alive is QUIC's business, and whether it is who it
//! says is the handshake's. [`record`] reads what strangers write, [`book`] keeps a bounded list of
//! them, [`mod@interfaces`] names this machine's interfaces. It does not know peers, keys or the node.
//! Start at [`Discovery::start`].

mod book;
mod interfaces;
mod record;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use daisy_proto::NodeId;
use mdns_sd::{IfKind, IfPredicate, Receiver, ResolvedService, ScopedIp, ServiceDaemon};
use mdns_sd::{ServiceEvent, ServiceInfo};
use tokio::sync::watch;

use self::book::Book;
pub use self::book::{Seen, Sighting};
use self::interfaces::is_used;
pub use self::interfaces::{interface_towards, interfaces};
pub use self::record::{Advert, RecordError};

/// What to look for, and what to say.
#[derive(Clone)]
pub struct Wish {
    /// Said to the network; none only looks.
    pub own: Option<Advert>,
    /// Where the node listens: it looks and speaks on those interfaces.
    pub listen: IpAddr,
    /// Nodes that keep a place in the book when strangers flood it.
    pub is_paired: Arc<dyn Fn(&NodeId) -> bool + Send + Sync>,
}

/// A running search. Dropping it ends it without a goodbye; see [`Self::stop`].
#[derive(Debug)]
pub struct Discovery {
    seen: watch::Receiver<Arc<Seen>>,
    /// Dropping it tells the thread to end.
    stop: mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

#[derive(Debug, thiserror::Error)]
pub enum DiscoveryError {
    #[error("multicast DNS does not start: {0}; name other nodes by --peer")]
    Start(#[from] mdns_sd::Error),
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
}

impl Discovery {
    pub fn start(wish: Wish) -> Result<Self, DiscoveryError> {
        let (seen_in, seen) = watch::channel(Arc::default());
        let (stop, stopped) = mpsc::channel();
        let began = Instant::now();
        let book = Book::new(wish.own.as_ref());
        let (daemon, events) = open(&wish)?;
        let search =
            Search { wish, daemon, events, book, seen: seen_in, began, faults: Faults::new() };
        let thread = std::thread::Builder::new()
            .name("discovery".to_owned())
            .spawn(move || search.run(&stopped))?;
        Ok(Self { seen, stop, thread })
    }

    /// What is known now and whenever it changes.
    pub fn seen(&self) -> watch::Receiver<Arc<Seen>> {
        self.seen.clone()
    }

    /// Says goodbye and ends; takes at most a second.
    pub fn stop(self) {
        let Self { stop, thread, .. } = self;
        drop(stop);
        let _ = thread.join();
    }
}

/// What the thread owns.
struct Search {
    wish: Wish,
    daemon: ServiceDaemon,
    events: Receiver<ServiceEvent>,
    book: Book,
    seen: watch::Sender<Arc<Seen>>,
    began: Instant,
    faults: Faults,
}

impl Search {
    fn run(mut self, stopped: &mpsc::Receiver<()>) {
        let mut checked = Instant::now();
        while !matches!(stopped.try_recv(), Err(mpsc::TryRecvError::Disconnected)) {
            let mut changed = false;
            // The channel holds a thousand events and is closed for ever when it is full, so it is
            // always emptied; what is told to the node is told once for all of them.
            match self.events.recv_timeout(TURN) {
                Ok(event) => {
                    changed |= self.take(event);
                    while let Ok(event) = self.events.try_recv() {
                        changed |= self.take(event);
                    }
                }
                Err(_) if self.events.is_disconnected() => changed |= self.reopen("it broke off"),
                Err(_) => {}
            }
            if checked.elapsed() >= CHECK_INTERVAL {
                checked = Instant::now();
                if self.cached() > CACHE_MAX {
                    changed |= self.reopen("too many records are on the network");
                }
            }
            if changed {
                self.seen.send_replace(Arc::new(self.book.all().clone()));
                // A flood of changes reaches the node at a bounded rate.
                std::thread::sleep(PAUSE);
            }
        }
        close(&self.daemon);
    }

    fn take(&mut self, event: ServiceEvent) -> bool {
        match event {
            ServiceEvent::ServiceResolved(service) => match read(&service) {
                Ok((advert, addrs)) => {
                    let is_paired = (self.wish.is_paired)(&advert.id);
                    self.book.seen(advert, addrs, is_paired, self.began.elapsed())
                }
                Err(error) => {
                    self.faults.log(&error);
                    false
                }
            },
            ServiceEvent::ServiceRemoved(_, name) => {
                label(&name).parse().is_ok_and(|id| self.book.gone(&id))
            }
            _ => false,
        }
    }

    /// Records that the library holds. It keeps as many as the network sends, for as long as they
    /// say; who floods it must not fill this machine's memory.
    fn cached(&self) -> i64 {
        let metrics = self.daemon.get_metrics().ok();
        let metrics = metrics.and_then(|answer| answer.recv_timeout(ANSWER_MAX).ok());
        let cached =
            |(name, count): (String, i64)| if name.starts_with("cached") { count } else { 0 };
        metrics.map_or(0, |metrics| metrics.into_iter().map(cached).sum())
    }

    /// Forgets everything and begins anew; says whether that worked.
    fn reopen(&mut self, why: &str) -> bool {
        tracing::warn!(why, "discovery starts anew");
        close(&self.daemon);
        match open(&self.wish) {
            Ok((daemon, events)) => (self.daemon, self.events) = (daemon, events),
            Err(error) => {
                tracing::warn!(%error, "discovery");
                std::thread::sleep(CHECK_INTERVAL);
                return false;
            }
        }
        self.book.clear();
        true
    }
}

fn open(wish: &Wish) -> Result<(ServiceDaemon, Receiver<ServiceEvent>), mdns_sd::Error> {
    let daemon = ServiceDaemon::new()?;
    let listen = wish.listen;
    let used = || IfKind::Predicate(IfPredicate::new(move |interface| is_used(interface, listen)));
    daemon.disable_interface(IfKind::All)?;
    daemon.enable_interface(used())?;
    // How soon a cable that was plugged in is used.
    daemon.set_ip_check_interval(1)?;
    let events = daemon.browse(SERVICE)?;
    if let Some(own) = &wish.own {
        let id = own.id.to_string();
        // A name of its own, never the machine's: macOS would rename itself. It is unique, so nobody
        // has to be asked first, and the node is seen in 10 ms instead of 0.9 s.
        let host = format!("{id}.local.");
        let mut info =
            ServiceInfo::new(SERVICE, &id, &host, "", own.port, &own.txt()[..])?.enable_addr_auto();
        info.set_requires_probe(false);
        info.set_interfaces(vec![used()]);
        daemon.register(info)?;
    }
    Ok((daemon, events))
}

/// Says goodbye on every interface.
fn close(daemon: &ServiceDaemon) {
    if let Ok(ended) = daemon.shutdown() {
        let _ = ended.recv_timeout(ANSWER_MAX);
    }
}

fn read(service: &ResolvedService) -> Result<(Advert, Vec<SocketAddr>), RecordError> {
    let fields: Vec<_> =
        service.txt_properties.iter().map(|field| (field.key(), field.val())).collect();
    let advert = Advert::parse(label(&service.fullname), &fields)?;
    let addrs = service.addresses.iter().filter_map(|addr| match addr {
        ScopedIp::V4(v4) => Some((IpAddr::from(*v4.addr()), 0)),
        ScopedIp::V6(v6) => Some((IpAddr::from(*v6.addr()), v6.scope_id().index)),
        _ => None,
    });
    let addrs = record::candidates(addrs, advert.port);
    Ok((advert, addrs))
}

/// The instance's own part of a full name.
fn label(fullname: &str) -> &str {
    fullname.strip_suffix(SERVICE).and_then(|label| label.strip_suffix('.')).unwrap_or_default()
}

/// Bad records are counted, and told at a bounded rate.
struct Faults {
    count: u64,
    told: Option<Instant>,
}

impl Faults {
    fn new() -> Self {
        Self { count: 0, told: None }
    }

    fn log(&mut self, error: &RecordError) {
        self.count += 1;
        if self.told.is_none_or(|told| told.elapsed() >= LOG_INTERVAL) {
            self.told = Some(Instant::now());
            tracing::warn!(%error, refused = self.count, "a multicast record was refused");
        }
    }
}

impl std::fmt::Debug for Wish {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wish")
            .field("own", &self.own)
            .field("listen", &self.listen)
            .finish_non_exhaustive()
    }
}

pub const SERVICE: &str = "_daisy._udp.local.";
/// How soon the thread sees that it should end.
const TURN: Duration = Duration::from_millis(250);
const PAUSE: Duration = Duration::from_millis(20);
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
const ANSWER_MAX: Duration = Duration::from_millis(500);
/// Some 500 bytes each. A full book takes four of them per node and interface.
const CACHE_MAX: i64 = 8192;
const LOG_INTERVAL: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_name_begins_with_the_label() {
        for (name, expected) in [
            ("abc._daisy._udp.local.", "abc"),
            ("a.b._daisy._udp.local.", "a.b"),
            ("_daisy._udp.local.", ""),
            ("abc._other._udp.local.", ""),
            ("", ""),
        ] {
            assert_eq!(label(name), expected, "{name}");
        }
    }
}
