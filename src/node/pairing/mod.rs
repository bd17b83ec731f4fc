//! Making two nodes know each other's key, by a code that a person carries from one to the other or by
//! an invitation. [`windows`] says when a stranger may try, [`token`] how secrets are written; the
//! proof is [`crate::pake`]'s. Start at [`Pairings::answer`] for the side that waits, and
//! [`Pairings::enter`] for the side that dials.

mod token;
mod windows;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use daisy_proto::local::{FromNode, Refusal, RefusalKind};
use daisy_proto::pair::{PROOF_BYTES, PairMessage, Secret};
use daisy_proto::{CloseReason, NodeId, NodeName};
use futures::future::join_all;
use tokio::sync::watch;

use self::token::{Token, code_secret, code_text};
use self::windows::{CODE_SHOWN, Invitation, Windows};
use super::{Node, random_u64};
use crate::identity::{IdentityError, Peers};
use crate::net::{DialError, PairConnection, PairLost};
use crate::pake::{Ends, Exchange, Said, Side};

/// The node's open windows; shared with its door.
#[derive(Debug)]
pub(crate) struct Pairings {
    windows: Mutex<Windows>,
    began: Instant,
    outcome: watch::Sender<Outcome>,
}

/// How the shown code ended.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Outcome {
    Waiting,
    Paired(NodeId, NodeName),
    TooManyTries,
    Failed(String),
}

/// Why one exchange did not pair.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error("{0}")]
    Lost(#[from] PairLost),
    #[error("the secret is wrong, used or expired")]
    Secret,
    #[error("{0}")]
    Here(String),
}

impl Pairings {
    pub(crate) fn new() -> Self {
        let outcome = watch::Sender::new(Outcome::Waiting);
        Self { windows: Mutex::default(), began: Instant::now(), outcome }
    }

    /// Whether the door should know the pairing protocol at all.
    pub(crate) fn are_open(&self) -> bool {
        self.windows().is_open(self.now())
    }

    /// Shows a code and waits for the node where it is entered; `tell` brings the code to the person.
    /// Dropping the future closes the window.
    pub(crate) async fn show(&self, tell: impl AsyncFnOnce(FromNode)) -> Result<FromNode, Refusal> {
        let text = code_text(random_u64().map_err(|error| cannot(error.to_string()))?);
        let secret = code_secret(&text).ok_or_else(|| cannot("no code was made".to_owned()))?;
        self.windows().show(secret, self.now()).map_err(|error| cannot(error.to_string()))?;
        let _window = Shown(self);
        self.outcome.send_replace(Outcome::Waiting);
        let mut outcome = self.outcome.subscribe();
        let expires_s = u32::try_from(CODE_SHOWN.as_secs()).unwrap_or(u32::MAX);
        tell(FromNode::PairCode { code: text, expires_s }).await;
        let ended = outcome.wait_for(|outcome| *outcome != Outcome::Waiting);
        match tokio::time::timeout(CODE_SHOWN, ended).await {
            Ok(Ok(outcome)) => match outcome.clone() {
                Outcome::Paired(id, name) => Ok(FromNode::Paired { id, name }),
                Outcome::Failed(reason) => Err(cannot(reason)),
                _ => Err(cannot("three wrong codes were entered: this one is void".to_owned())),
            },
            Ok(Err(_)) | Err(_) => Err(cannot("nobody entered the code in time".to_owned())),
        }
    }

    /// Opens an invitation.
    pub(crate) fn invite(&self, node: &Node, ttl: Duration) -> Result<FromNode, Refusal> {
        if ttl.is_zero() || ttl > INVITATION_MAX {
            let hours = INVITATION_MAX.as_secs() / 3600;
            return Err(cannot(format!("an invitation lasts at most {hours} hours")));
        }
        let random = || random_u64().map_err(|error| cannot(error.to_string()));
        let token = Token {
            issuer: node.identity.node_id(),
            number: random()?.to_le_bytes(),
            secret: (u128::from(random()?) << 64 | u128::from(random()?)).to_le_bytes(),
        };
        let Token { number, secret, .. } = token;
        let now = self.now();
        self.windows()
            .invite(Invitation { number, secret, until: now + ttl }, now)
            .map_err(|error| cannot(error.to_string()))?;
        let expires_s = u32::try_from(ttl.as_secs()).unwrap_or(u32::MAX);
        Ok(FromNode::Invitation { token: token.text(), expires_s })
    }

    /// Speaks with one stranger that came in.
    pub(crate) async fn answer(&self, node: &Node, mut stranger: PairConnection) {
        let peer = stranger.peer;
        let (secret, outcome) = match stranger.recv().await {
            Ok(PairMessage::Open { secret, share, name }) => {
                let open = PairMessage::Open { secret, share, name: name.clone() };
                let outcome = self.exchange(node, &mut stranger, secret, &open, &share).await;
                (secret, outcome.map(|()| name))
            }
            _ => return stranger.close(CloseReason::BadFrame),
        };
        match outcome {
            Ok(name) => {
                tracing::info!(peer = %peer.short(), "paired");
                if secret == Secret::Code {
                    self.outcome.send_replace(Outcome::Paired(peer, name));
                }
                stranger.drained().await;
            }
            Err(failed) => {
                tracing::warn!(peer = %peer.short(), remote = %stranger.remote, %failed, "did not pair");
                if let Failed::Here(reason) = &failed {
                    self.outcome.send_replace(Outcome::Failed(reason.clone()));
                } else if self.windows().failed(secret) {
                    self.outcome.send_replace(Outcome::TooManyTries);
                }
                stranger.close(CloseReason::NotTrusted);
            }
        }
    }

    async fn exchange(
        &self,
        node: &Node,
        stranger: &mut PairConnection,
        secret: Secret,
        open: &PairMessage,
        share: &[u8; 33],
    ) -> Result<(), Failed> {
        let password = self.windows().take(secret, self.now()).ok_or(Failed::Secret)?;
        let ends = Ends { dialler: stranger.peer, listener: node.identity.node_id() };
        let (exchange, own_share) = Exchange::start(Side::Listener, &password, ends);
        let agreed = exchange.finish(share).map_err(|_| Failed::Secret)?;
        let reply = |proof| PairMessage::Reply { share: own_share, name: node.name.clone(), proof };
        let said = Said {
            binding: stranger.binding()?,
            open: open.encode(),
            reply: reply([0; PROOF_BYTES]).encode(),
        };
        let proofs = agreed.proofs(&said);
        stranger.send(&reply(proofs.own())).await?;
        match stranger.recv().await? {
            PairMessage::Proof(proof) if proofs.accepts(&proof) => {}
            _ => return Err(Failed::Secret),
        }
        // Of two nodes that both know it, the first one has it.
        if !self.windows().claim(secret, self.now()) {
            return Err(Failed::Secret);
        }
        let PairMessage::Open { name, .. } = open else { return Err(Failed::Secret) };
        store(node, stranger.peer, name)?;
        // It is paired whether the last word arrives or not.
        let _ = stranger.send(&PairMessage::Done).await;
        Ok(())
    }

    /// Enters a code that another node shows.
    pub(crate) async fn enter(
        &self,
        node: &Arc<Node>,
        code: &str,
        peers: &[SocketAddr],
    ) -> Result<FromNode, Refusal> {
        let password = code_secret(code).ok_or_else(|| Refusal {
            hints: vec!["a code is six digits, as `daisy cluster pair` shows them".to_owned()],
            kind: RefusalKind::Usage,
            ..cannot(format!("{code:?} is not a code"))
        })?;
        self.seek(node, Secret::Code, &password, None, peers).await
    }

    /// Uses an invitation.
    pub(crate) async fn join(
        &self,
        node: &Arc<Node>,
        token: &str,
        peers: &[SocketAddr],
    ) -> Result<FromNode, Refusal> {
        let token = Token::parse(token).ok_or_else(|| Refusal {
            hints: vec!["`daisy cluster invite` on the other machine prints one".to_owned()],
            kind: RefusalKind::Usage,
            ..cannot("that is not an invitation".to_owned())
        })?;
        let secret = Secret::Invitation(token.number);
        self.seek(node, secret, &token.secret, Some(token.issuer), peers).await
    }

    /// Looks for the node where the window is open, and pairs with it.
    async fn seek(
        &self,
        node: &Arc<Node>,
        secret: Secret,
        password: &[u8],
        wanted: Option<NodeId>,
        peers: &[SocketAddr],
    ) -> Result<FromNode, Refusal> {
        let began = Instant::now();
        let mut causes = Vec::new();
        while began.elapsed() < SEEK_MAX {
            let known = node.neighbours.pairable().into_iter();
            let candidates = known.filter(|(id, _)| wanted.is_none_or(|wanted| wanted == *id));
            let mut tries: Vec<(Option<NodeId>, Vec<SocketAddr>)> =
                candidates.map(|(id, addrs)| (Some(id), addrs)).take(TRIES_AT_ONCE).collect();
            tries.extend(peers.iter().chain(&node.peers).map(|addr| (wanted, vec![*addr])));
            let dials =
                tries.iter().map(|(id, addrs)| node.control.dial_pair(*id, addrs, DIAL_MAX));
            causes.clear();
            let mut answered = Vec::new();
            for outcome in join_all(dials).await.into_iter().flatten() {
                match outcome {
                    Ok(line) => answered.push(line),
                    Err(error) => causes.push(error),
                }
            }
            // By id: one node may have been dialled in two ways.
            answered.sort_by_key(|line| line.peer);
            answered.dedup_by_key(|line| line.peer);
            let mut failed = None;
            for mut line in answered {
                match self.open(node, &mut line, secret, password).await {
                    Ok(name) => return Ok(FromNode::Paired { id: line.peer, name }),
                    Err(error) => failed = Some(wrong(&line, &error)),
                }
            }
            if let Some(refusal) = failed {
                return Err(refusal);
            }
            tokio::time::sleep(SEEK_PAUSE).await;
        }
        Err(not_found(secret, &causes))
    }

    /// The dialling side of one exchange; gives the other node's name.
    async fn open(
        &self,
        node: &Node,
        line: &mut PairConnection,
        secret: Secret,
        password: &[u8],
    ) -> Result<NodeName, Failed> {
        let ends = Ends { dialler: node.identity.node_id(), listener: line.peer };
        let (exchange, share) = Exchange::start(Side::Dialler, password, ends);
        let open = line.send(&PairMessage::Open { secret, share, name: node.name.clone() }).await?;
        let PairMessage::Reply { share, name, proof } = line.recv().await? else {
            return Err(Failed::Secret);
        };
        let agreed = exchange.finish(&share).map_err(|_| Failed::Secret)?;
        let reply = PairMessage::Reply { share, name: name.clone(), proof: [0; PROOF_BYTES] };
        let said = Said { binding: line.binding()?, open, reply: reply.encode() };
        let proofs = agreed.proofs(&said);
        if !proofs.accepts(&proof) {
            return Err(Failed::Secret);
        }
        line.send(&PairMessage::Proof(proofs.own())).await?;
        match line.recv().await? {
            PairMessage::Done => store(node, line.peer, &name)?,
            _ => return Err(Failed::Secret),
        }
        line.close(CloseReason::Done);
        Ok(name)
    }

    fn windows(&self) -> MutexGuard<'_, Windows> {
        // Every change is one call, so a poisoned lock holds nothing half-done.
        self.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }
}

/// Closes the window when the person goes away.
struct Shown<'a>(&'a Pairings);

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        self.0.windows().hide();
    }
}

fn store(node: &Node, peer: NodeId, name: &NodeName) -> Result<(), Failed> {
    remember(&node.home, peer, Some(name)).map_err(|error| Failed::Here(error.to_string()))?;
    node.neighbours.trust_changed();
    Ok(())
}

/// How every way of pairing makes `peer` known at `home`; false when it was already. A running node sees
/// the change in the file.
pub(crate) fn remember(
    home: &Path,
    peer: NodeId,
    name: Option<&NodeName>,
) -> Result<bool, IdentityError> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Peers::load(home)?.trust(peer, name, now.as_secs())
}

fn wrong(line: &PairConnection, error: &Failed) -> Refusal {
    let (peer, remote) = (line.peer.short(), line.remote);
    let message = match error {
        // It closes without a word when it was handed a wrong proof, and so does this side.
        Failed::Secret | Failed::Lost(PairLost::Closed) => {
            format!("node {peer} at {remote} did not accept it: it is wrong, used or expired")
        }
        other => format!("pairing with node {peer} at {remote} broke off: {other}"),
    };
    Refusal {
        hints: vec!["get a new code or invitation on the other machine".to_owned()],
        ..cannot(message)
    }
}

fn not_found(secret: Secret, causes: &[DialError]) -> Refusal {
    let what = match secret {
        Secret::Code => "no node that shows a code was found",
        Secret::Invitation(_) => {
            "the node that made this invitation was not found, or it has none open"
        }
    };
    let mut message = what.to_owned();
    for cause in causes.iter().filter(|cause| matches!(cause, DialError::Unreachable { .. })) {
        message.push('\n');
        message.push_str(&cause.to_string());
    }
    Refusal {
        hints: vec![
            "run `daisy cluster pair` on the other machine while you enter its code here"
                .to_owned(),
            "`daisy cluster peers` shows which nodes are seen; --peer ADDR names one that is not"
                .to_owned(),
        ],
        kind: RefusalKind::NotReachable,
        ..cannot(message)
    }
}

fn cannot(message: String) -> Refusal {
    Refusal { message, hints: Vec::new(), kind: RefusalKind::CannotBeDone }
}

const INVITATION_MAX: Duration = Duration::from_hours(24);
/// A node that has just started needs a moment to be seen.
const SEEK_MAX: Duration = Duration::from_secs(5);
const SEEK_PAUSE: Duration = Duration::from_millis(500);
const DIAL_MAX: Duration = Duration::from_secs(3);
const TRIES_AT_ONCE: usize = 64;

#[cfg(test)]
mod tests;
