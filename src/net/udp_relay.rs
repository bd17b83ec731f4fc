//! Passes datagrams on between two machines that have no fast link of their own, where this one has a link
//! to each.
//!
//! It works below QUIC: the two ends prove their keys to each other through it, and nothing is read here.
//! Every sender gets a socket of its own towards the target, as behind a router, so that answers find their way
//! back and a sender that comes anew is a new one. Start at [`UdpRelay::open`].

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use daisy_proto::control::Way;
use tokio::net::UdpSocket;
use tokio::task::JoinSet;

use super::transport::bind;

/// Lives until it is dropped.
#[derive(Debug)]
pub struct UdpRelay {
    port: u16,
    _task: JoinSet<()>,
}

impl UdpRelay {
    /// Whatever comes to its port goes by `to`, and what comes back from there goes to who sent it. Must be
    /// called within a Tokio runtime.
    pub fn open(to: Way) -> io::Result<Self> {
        let front = bind((Ipv6Addr::UNSPECIFIED, 0).into(), None)
            // A machine without IPv6.
            .or_else(|_| bind((Ipv4Addr::UNSPECIFIED, 0).into(), None))?;
        let front = Arc::new(UdpSocket::from_std(front)?);
        let port = front.local_addr()?.port();
        let mut task = JoinSet::new();
        task.spawn(pass(front, to));
        Ok(Self { port, _task: task })
    }

    /// Where it takes datagrams, on every address of this machine.
    pub fn port(&self) -> u16 {
        self.port
    }
}

/// Who sends through the relay, and the socket that stands for them.
struct Sender {
    addr: SocketAddr,
    back: Arc<UdpSocket>,
    _answers: JoinSet<()>,
}

async fn pass(front: Arc<UdpSocket>, to: Way) {
    // The one that was heard last comes last.
    let mut senders: Vec<Sender> = Vec::new();
    let mut buffer = vec![0; DATAGRAM_MAX];
    loop {
        let Ok((length, from)) = front.recv_from(&mut buffer).await else {
            // Some systems tell here that a datagram of before was not taken; and none may spin.
            tokio::time::sleep(AFTER_ERROR).await;
            continue;
        };
        let sender = match senders.iter().position(|sender| sender.addr == from) {
            Some(at) => senders.remove(at),
            None => match stand_for(from, &front, &to) {
                Ok(sender) => sender,
                Err(error) => {
                    tracing::warn!(%from, %error, "a datagram cannot be passed on");
                    continue;
                }
            },
        };
        // What is not taken is lost, as on any network: QUIC sends it again.
        let _ = sender.back.send(&buffer[..length]).await;
        if senders.len() >= SENDERS_MAX {
            senders.remove(0);
        }
        senders.push(sender);
    }
}

fn stand_for(addr: SocketAddr, front: &Arc<UdpSocket>, to: &Way) -> io::Result<Sender> {
    let any: IpAddr = match to.addr {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let back = bind(SocketAddr::new(any, 0), to.device.as_ref())?;
    socket2::SockRef::from(&back).connect(&to.addr.into())?;
    let back = Arc::new(UdpSocket::from_std(back)?);
    let mut answers = JoinSet::new();
    let (front, from) = (Arc::clone(front), Arc::clone(&back));
    answers.spawn(async move {
        let mut buffer = vec![0; DATAGRAM_MAX];
        loop {
            match from.recv(&mut buffer).await {
                Ok(length) => drop(front.send_to(&buffer[..length], addr).await),
                Err(_) => tokio::time::sleep(AFTER_ERROR).await,
            }
        }
    });
    Ok(Sender { addr, back, _answers: answers })
}

/// The largest that UDP has.
const DATAGRAM_MAX: usize = 65_535;
/// A rank, the same one after it has dialled anew, and room for strangers, who get nowhere without a key.
const SENDERS_MAX: usize = 8;
const AFTER_ERROR: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    async fn local() -> UdpSocket {
        UdpSocket::bind("127.0.0.1:0").await.expect("a socket")
    }

    async fn heard(socket: &UdpSocket) -> (Vec<u8>, SocketAddr) {
        let mut buffer = [0; 64];
        let heard = tokio::time::timeout(Duration::from_secs(5), socket.recv_from(&mut buffer));
        let (length, from) = heard.await.expect("in time").expect("a datagram");
        (buffer[..length].to_vec(), from)
    }

    #[tokio::test]
    async fn each_sender_hears_its_own_answers() {
        let target = local().await;
        let to = Way::from(target.local_addr().expect("bound"));
        let relay = UdpRelay::open(to).expect("opens");
        let at = SocketAddr::from(([127, 0, 0, 1], relay.port()));
        let senders = [local().await, local().await];
        for (sender, said) in senders.iter().zip([b"one", b"two"]) {
            sender.send_to(said, at).await.expect("sent");
            let (arrived, from) = heard(&target).await;
            assert_eq!(arrived, said);
            target.send_to(&[said.as_slice(), b" back"].concat(), from).await.expect("sent");
        }
        for (sender, said) in senders.iter().zip(["one back", "two back"]) {
            let (arrived, from) = heard(sender).await;
            assert_eq!((arrived, from), (said.as_bytes().to_vec(), at));
        }
    }

    #[tokio::test]
    async fn strangers_take_no_more_than_their_room() {
        let target = local().await;
        let relay = UdpRelay::open(target.local_addr().expect("bound").into()).expect("opens");
        let at = SocketAddr::from(([127, 0, 0, 1], relay.port()));
        let mut known = Vec::new();
        for _ in 0..SENDERS_MAX * 3 {
            let stranger = local().await;
            stranger.send_to(b"x", at).await.expect("sent");
            known.push(heard(&target).await.1);
        }
        // The earliest are forgotten: what is sent to them arrives nowhere, and the relay goes on.
        target.send_to(b"late", known[0]).await.expect("sent");
        let last = local().await;
        last.send_to(b"y", at).await.expect("sent");
        assert_eq!(heard(&target).await.0, b"y");
    }

    #[tokio::test]
    async fn it_ends_when_dropped() {
        let target = local().await;
        let relay = UdpRelay::open(target.local_addr().expect("bound").into()).expect("opens");
        let port = relay.port();
        drop(relay);
        // The task ends at its next turn, and its socket with it.
        for _ in 0..100 {
            if UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port)).await.is_ok() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("port {port} is still taken");
    }
}
