//! How the two ends of an edge find each other, at first and when the edge moves: the sender dials, the
//! receiver waits.
//!
//! The dialer tries all candidate addresses side by side; the pinned key decides which of them is the
//! peer. Nothing here knows steps or pipelines. Start at [`Route::meet`].

use std::fmt::Write as _;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use daisy_proto::control::Way;
use daisy_proto::{ALPN_DATA, NodeId};
use quinn::{Connection, ConnectionError, Endpoint, RecvStream, SendStream};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};

use super::{EdgeConfig, EdgeListener};
use crate::net::door::{Door, Refusals};
use crate::net::tls::{self, Gate, KeyPair, Pin, Trust};
use crate::net::transport::{self, Open, SERVER_NAME, Use, canonical};

/// Both ends are connected and have proved their keys; nothing has been said yet.
pub(super) struct Met {
    /// Kept for the farewell.
    pub endpoint: Endpoint,
    pub connection: Connection,
    pub send: SendStream,
    pub recv: RecvStream,
    /// How the dialer came here; none at the receiver.
    pub way: Option<Way>,
}

impl Met {
    pub(super) fn remote(&self) -> SocketAddr {
        canonical(self.connection.remote_address())
    }
}

/// How one end comes to a connection, as often as it has to.
pub(super) enum Route {
    Dial { key: KeyPair, ways: Vec<Way> },
    Listen(Arrivals),
}

impl Route {
    /// The error says what became of each address, or why nobody came.
    pub(super) async fn meet(&mut self, config: EdgeConfig) -> Result<Met, String> {
        match self {
            Self::Dial { key, ways } => dial(key.clone(), ways.clone(), config).await,
            Self::Listen(arrivals) => arrivals.next(config).await,
        }
    }

    /// Whether there may be another path when the present one is no more. The receiver cannot know: it
    /// waits whether the sender comes by another one.
    pub(super) fn may_have_another(&self) -> bool {
        match self {
            Self::Dial { ways, .. } => ways.len() > 1,
            Self::Listen(_) => true,
        }
    }

    /// The next one that comes in unasked. Only the receiver has such.
    pub(super) async fn guest(&mut self) -> Met {
        match self {
            Self::Listen(Arrivals { guests, .. }) => match guests.recv().await {
                Some(met) => met,
                None => std::future::pending().await,
            },
            Self::Dial { .. } => std::future::pending().await,
        }
    }
}

/// Lets the one peer in, and again when it comes by another path. Nobody else, and nobody once it is
/// dropped.
pub(super) struct Arrivals {
    local: SocketAddr,
    endpoint: Endpoint,
    refusals: Arc<Refusals>,
    guests: mpsc::Receiver<Met>,
    door: AbortHandle,
}

impl Arrivals {
    /// Must be called within a Tokio runtime.
    pub(super) fn open(listener: EdgeListener, config: &EdgeConfig) -> Result<Self, String> {
        let local = listener.local;
        let expected = config.peer_key.0;
        let trust: Trust = Arc::new(move |key| *key == expected);
        let gates = vec![Gate::always(ALPN_DATA, trust)];
        let door = Door::new(&listener.key, gates).map_err(|error| error.to_string())?;
        let refusals = door.refusals();
        let open = transport::open(listener.socket, Use::Edge, Some(door.server_config()))
            .map_err(|error| format!("cannot listen on UDP {local}: {error}"))?;
        let endpoint = open.endpoint.clone();
        let (sender, guests) = mpsc::channel(1);
        let of_guest = endpoint.clone();
        let welcome = move |connection: Connection, _shown| {
            let endpoint = of_guest.clone();
            async move {
                // Only the address that the dialer decided for gets a stream; its other tries end here.
                let (send, recv) = connection.accept_bi().await.ok()?;
                Some(Met { endpoint, connection, send, recv, way: None })
            }
        };
        let door = tokio::spawn(door.run(open, welcome, sender)).abort_handle();
        Ok(Self { local, endpoint, refusals, guests, door })
    }

    async fn next(&mut self, config: EdgeConfig) -> Result<Met, String> {
        let local = self.local;
        match tokio::time::timeout(config.connect_timeout, self.guests.recv()).await {
            Ok(Some(met)) => Ok(met),
            Ok(None) => Err(format!("UDP {local} was closed")),
            Err(_) => {
                let waited_s = config.connect_timeout.as_secs_f32();
                let mut cause = format!("it did not dial UDP {local} within {waited_s:.1} s");
                if self.refusals.count() > 0 {
                    let refused = self.refusals.count();
                    let _ = write!(cause, " ({refused} other connections were refused)");
                }
                Err(cause)
            }
        }
    }
}

impl Drop for Arrivals {
    fn drop(&mut self) {
        self.door.abort();
        self.endpoint.set_server_config(None);
    }
}

/// The sender's side. The error lists what became of each address.
async fn dial(key: KeyPair, ways: Vec<Way>, config: EdgeConfig) -> Result<Met, String> {
    let causes = Causes::default();
    let mut sockets = Vec::new();
    let mut race = JoinSet::new();
    for (position, way) in (0..).zip(ways.iter().take(CANDIDATES_MAX)) {
        let addr = way.addr;
        let candidate = Candidate { addr, key: key.clone(), expected: config.peer_key.0 };
        let open = match open_once(&mut sockets, way) {
            Ok(open) => open,
            Err(error) => {
                causes.set(addr, format!("cannot open a socket for it: {error}"));
                continue;
            }
        };
        let (causes, way) = (causes.clone(), way.clone());
        race.spawn(async move {
            tokio::time::sleep(HEAD_START * position).await;
            let connection = candidate.dial_until_final(&open, &causes).await?;
            Some((open, connection, way))
        });
    }
    let first = async {
        while let Some(result) = race.join_next().await {
            if let Ok(Some((open, connection, way))) = result
                && let Ok((send, recv)) = connection.open_bi().await
            {
                let (endpoint, way) = (open.endpoint, Some(way));
                return Some(Met { endpoint, connection, send, recv, way });
            }
        }
        None
    };
    match tokio::time::timeout(config.connect_timeout, first).await {
        Ok(Some(met)) => Ok(met),
        Ok(None) if ways.is_empty() => Err("no address of it is known".to_owned()),
        Ok(None) => Err(format!("no connection ({causes})")),
        Err(_) => {
            let waited_s = config.connect_timeout.as_secs_f32();
            Err(format!("no connection within {waited_s:.1} s ({causes})"))
        }
    }
}

/// One address of the peer.
struct Candidate {
    addr: SocketAddr,
    key: KeyPair,
    expected: [u8; 32],
}

impl Candidate {
    /// Tries again until it is connected (some) or cannot be the peer (none).
    async fn dial_until_final(&self, open: &Open, causes: &Causes) -> Option<Connection> {
        causes.set(self.addr, "no answer".to_owned());
        loop {
            let expected = self.expected;
            let pin = Pin::for_dial(ALPN_DATA, Arc::new(move |key| *key == expected));
            let attempt = tokio::time::timeout(ATTEMPT_TIMEOUT, self.attempt(open, &pin));
            match attempt.await {
                Ok(Ok(connection)) => return Some(connection),
                Ok(Err(cause)) => causes.set(self.addr, cause),
                Err(_) => causes.set(self.addr, "no answer".to_owned()),
            }
            if let Some(shown) = pin.shown().filter(|shown| !shown.trusted) {
                let key = NodeId(shown.key).short();
                causes.set(self.addr, format!("another key ({key}…) answered"));
                return None;
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    async fn attempt(&self, open: &Open, pin: &Arc<Pin>) -> Result<Connection, String> {
        let crypto = tls::client(&self.key, Arc::clone(pin)).map_err(|error| error.to_string())?;
        let mut config = quinn::ClientConfig::new(crypto);
        config.transport_config(Arc::clone(&open.transport));
        let connecting = open
            .endpoint
            .connect_with(config, self.addr, SERVER_NAME)
            .map_err(|error| error.to_string())?;
        connecting.await.map_err(|error| match error {
            ConnectionError::TimedOut => "no answer".to_owned(),
            other => other.to_string(),
        })
    }
}

/// What became of each address so far.
#[derive(Clone, Default)]
struct Causes(Arc<Mutex<Vec<(SocketAddr, String)>>>);

impl Causes {
    fn set(&self, addr: SocketAddr, cause: String) {
        let mut causes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match causes.iter_mut().find(|(known, _)| *known == addr) {
            Some((_, last)) => *last = cause,
            None => causes.push((addr, cause)),
        }
    }
}

impl std::fmt::Display for Causes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let texts: Vec<_> = list.iter().map(|(addr, cause)| format!("{addr}: {cause}")).collect();
        f.write_str(&texts.join("; "))
    }
}

/// One socket per address family and interface serves all candidates.
fn open_once<'a>(sockets: &mut Vec<(&'a Way, Open)>, way: &'a Way) -> io::Result<Open> {
    let is_alike =
        |known: &Way| (known.addr.is_ipv4(), &known.device) == (way.addr.is_ipv4(), &way.device);
    if let Some((_, open)) = sockets.iter().find(|(known, _)| is_alike(known)) {
        return Ok(open.clone());
    }
    let any: IpAddr = if way.addr.is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    };
    let socket = transport::bind(SocketAddr::new(any, 0), way.device.as_ref())?;
    let open = transport::open(socket, Use::Edge, None)?;
    sockets.push((way, open.clone()));
    Ok(open)
}

/// A peer has a handful of interfaces with an address or two each.
const CANDIDATES_MAX: usize = 16;
/// An earlier way wins when both answer, even on a busy machine: ways are sorted by what was measured.
const HEAD_START: Duration = Duration::from_millis(250);
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(3);
const RETRY_PAUSE: Duration = Duration::from_millis(100);
