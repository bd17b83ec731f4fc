//! Two nodes on loopback, and those who would come between them.

use std::net::Ipv4Addr;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::*;
use crate::identity::Peers;
use crate::net::{ControlEndpoint, KeyPair};
use crate::node::NodeConfig;

struct Running {
    home: tempfile::TempDir,
    node: Arc<Node>,
    _stop: oneshot::Sender<()>,
    _task: JoinHandle<()>,
}

impl Running {
    fn new(name: &str) -> Self {
        let home = tempfile::tempdir().expect("a folder");
        let config = NodeConfig {
            home: home.path().to_owned(),
            name: NodeName::new(name).expect("a name"),
            listen: (Ipv4Addr::LOCALHOST, 0).into(),
            peers: Vec::new(),
            discovery: false,
            limits: crate::machine::Limits::default(),
        };
        let opened = Node::open(config).expect("opens");
        let node = Arc::clone(&opened.node);
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(opened.run(async {
            let _ = stopped.await;
        }));
        Self { home, node, _stop: stop, _task: task }
    }

    fn id(&self) -> NodeId {
        self.node.identity.node_id()
    }

    fn addr(&self) -> SocketAddr {
        self.node.control.local_addr()
    }

    fn trusts(&self, other: NodeId) -> bool {
        Peers::load(self.home.path()).expect("a list").contains(&other)
    }

    /// Shows a code: the code, and how it ends.
    async fn show(&self) -> (String, JoinHandle<Result<FromNode, Refusal>>) {
        let (code_in, code) = oneshot::channel();
        let node = Arc::clone(&self.node);
        let shown = tokio::spawn(async move {
            let tell = async |told| {
                if let FromNode::PairCode { code, .. } = told {
                    let _ = code_in.send(code);
                }
            };
            node.pairings.show(tell).await
        });
        (in_time(code).await.expect("a code"), shown)
    }

    async fn enter(&self, code: &str, at: SocketAddr) -> Result<FromNode, Refusal> {
        in_time(self.node.pairings.enter(&self.node, code, &[at])).await
    }

    fn invite(&self, ttl: Duration) -> String {
        match self.node.pairings.invite(&self.node, ttl).expect("open") {
            FromNode::Invitation { token, .. } => token,
            other => panic!("{other:?}"),
        }
    }

    async fn join(&self, token: &str, at: SocketAddr) -> Result<FromNode, Refusal> {
        in_time(self.node.pairings.join(&self.node, token, &[at])).await
    }
}

async fn in_time<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(30), future).await.expect("must not hang")
}

/// A code that is not `code`.
fn other_than(code: &str) -> &'static str {
    if code == "111-111" { "222-222" } else { "111-111" }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_code_makes_two_nodes_know_each_other() {
    let (a, b) = (Running::new("a"), Running::new("b"));
    let (code, shown) = a.show().await;
    let entered = b.enter(&code.replace('-', ""), a.addr()).await.expect("paired");
    let name = NodeName::new("a").expect("a name");
    assert_eq!(entered, FromNode::Paired { id: a.id(), name });
    let name = NodeName::new("b").expect("a name");
    let shown = in_time(shown).await.expect("no panic").expect("paired");
    assert_eq!(shown, FromNode::Paired { id: b.id(), name });
    assert!(a.trusts(b.id()) && b.trusts(a.id()));
    assert!(!a.node.pairings.are_open(), "the window is closed");
    let mut list = Peers::load(a.home.path()).expect("a list").list().to_vec();
    assert_eq!(list.remove(0).name.expect("a name").as_str(), "b");
}

#[tokio::test(flavor = "multi_thread")]
async fn three_wrong_codes_end_it() {
    let (a, b) = (Running::new("a"), Running::new("b"));
    let (code, shown) = a.show().await;
    for n in 0..3 {
        assert!(!shown.is_finished(), "after {n} wrong tries");
        let refused = b.enter(other_than(&code), a.addr()).await.expect_err("wrong");
        assert!(refused.message.contains("wrong"), "{}", refused.message);
    }
    let ended = in_time(shown).await.expect("no panic").expect_err("void");
    assert!(ended.message.contains("three wrong"), "{}", ended.message);
    assert!(!a.node.pairings.are_open());
    let late = b.enter(&code, a.addr()).await.expect_err("no window");
    assert_eq!(late.kind, RefusalKind::NotReachable);
    assert!(!a.trusts(b.id()) && !b.trusts(a.id()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_who_goes_away_closes_the_window() {
    let a = Running::new("a");
    let (_code, shown) = a.show().await;
    assert!(a.node.pairings.are_open());
    shown.abort();
    assert!(shown.await.expect_err("ended").is_cancelled());
    assert!(!a.node.pairings.are_open());
    let nonsense = a.enter("abc", a.addr()).await.expect_err("no code");
    assert_eq!(nonsense.kind, RefusalKind::Usage);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invitation_pairs_one_node_once_and_only_with_its_issuer() {
    let (a, b, c) = (Running::new("a"), Running::new("b"), Running::new("c"));
    let token = a.invite(Duration::from_mins(10));
    // The token names its issuer: another node's answer does not count.
    let _other = c.invite(Duration::from_mins(10));
    let refused = b.join(&token, c.addr()).await.expect_err("not the issuer");
    assert_eq!(refused.kind, RefusalKind::NotReachable, "{}", refused.message);
    let joined = b.join(&token, a.addr()).await.expect("paired");
    assert!(matches!(joined, FromNode::Paired { id, .. } if id == a.id()), "{joined:?}");
    assert!(a.trusts(b.id()) && b.trusts(a.id()));
    let _another = a.invite(Duration::from_mins(10));
    let again = c.join(&token, a.addr()).await.expect_err("used");
    assert!(again.message.contains("used or expired"), "{}", again.message);
    assert!(!a.trusts(c.id()) && !c.trusts(a.id()));
    let expired = a.invite(Duration::from_millis(1));
    tokio::time::sleep(Duration::from_millis(2)).await;
    assert!(c.join(&expired, a.addr()).await.is_err());
    assert!(!a.trusts(c.id()));
    let nonsense = c.join("daisy-abc", a.addr()).await.expect_err("no token");
    assert_eq!(nonsense.kind, RefusalKind::Usage);
}

/// Somebody between two nodes who lets each believe that it is the other one.
struct Relay {
    id: NodeId,
    endpoint: ControlEndpoint,
}

impl Relay {
    fn new() -> Self {
        let key = KeyPair::generate().expect("a key");
        let listen = (Ipv4Addr::LOCALHOST, 0).into();
        let open = Arc::new(|| true);
        let trust = Arc::new(|_: &NodeId| false);
        let endpoint = ControlEndpoint::bind(listen, &key, trust, open, "relay").expect("bound");
        Self { id: NodeId(key.public()), endpoint }
    }

    /// Passes every message on unchanged, and gives what was said.
    async fn pass_on(&self, to: SocketAddr) -> Vec<PairMessage> {
        let mut near = self.endpoint.accept_pair().await.expect("a victim");
        let max = Duration::from_secs(5);
        let mut far =
            self.endpoint.dial_pair(None, &[to], max).await.expect("an address").expect("open");
        let mut said = Vec::new();
        loop {
            let Ok(message) = near.recv().await else { return said };
            said.push(message.clone());
            if far.send(&message).await.is_err() {
                return said;
            }
            let Ok(message) = far.recv().await else { return said };
            said.push(message.clone());
            if near.send(&message).await.is_err() {
                return said;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_in_the_middle_fails_though_the_code_is_right() {
    let (a, b, relay) = (Running::new("a"), Running::new("b"), Relay::new());
    let at = relay.endpoint.local_addr();
    let (code, shown) = a.show().await;
    let (entered, said) =
        in_time(async { tokio::join!(Box::pin(b.enter(&code, at)), relay.pass_on(a.addr())) })
            .await;
    assert!(entered.expect_err("must fail").message.contains("did not accept"));
    assert!(said.len() >= 2, "it did relay: {said:?}");
    assert!(!a.trusts(b.id()) && !b.trusts(a.id()));
    assert!(!shown.is_finished(), "one try of three");
    // The two alone still can.
    b.enter(&code, a.addr()).await.expect("paired");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pairing_that_was_overheard_cannot_be_played_again() {
    let (a, mallory) = (Running::new("a"), Relay::new());
    let (code, shown) = a.show().await;
    let password = code_secret(&code).expect("a code");
    let max = Duration::from_secs(5);
    let addrs = [a.addr()];
    let dial = || mallory.endpoint.dial_pair(None, &addrs, max);
    // What an honest dialler says; somebody with the same key plays it again, on a new connection.
    let mut line = in_time(dial()).await.expect("an address").expect("open");
    let own = mallory.id;
    let (exchange, share) =
        Exchange::start(Side::Dialler, &password, Ends { dialler: own, listener: a.id() });
    let open = PairMessage::Open {
        secret: Secret::Code,
        share,
        name: NodeName::new("m").expect("a name"),
    };
    let bytes = line.send(&open).await.expect("sent");
    let Ok(PairMessage::Reply { share, name, proof }) = line.recv().await else {
        panic!("no reply")
    };
    let agreed = exchange.finish(&share).expect("a share");
    let reply = PairMessage::Reply { share, name, proof: [0; PROOF_BYTES] };
    let said = Said { binding: line.binding().expect("bound"), open: bytes, reply: reply.encode() };
    let proofs = agreed.proofs(&said);
    assert!(proofs.accepts(&proof), "an honest exchange so far");
    drop(line);
    let mut line = in_time(dial()).await.expect("an address").expect("open");
    line.send(&open).await.expect("sent");
    assert!(matches!(line.recv().await, Ok(PairMessage::Reply { .. })));
    line.send(&PairMessage::Proof(proofs.own())).await.expect("sent");
    assert!(in_time(line.recv()).await.is_err(), "an old proof is none");
    assert!(!a.trusts(own) && !shown.is_finished());
}
