//! Ranks between their start and their first frame: where each runs and listens, and who its
//! neighbours are.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use daisy_proto::control::{RankKey, Request, Response, Way};
use daisy_proto::local::{RankStart, ToRank};
use daisy_proto::{Interface, NodeId, PathEnd};

use super::peers::Peer;

/// Where a staged rank runs and listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StagedAt {
    pub(crate) pid: u32,
    pub(crate) key: RankKey,
    pub(crate) port: u16,
}

/// The ways from each rank to the next, best first: pairs of the dialler's own end and the other's.
pub(crate) type Hops = Vec<Vec<(PathEnd, PathEnd)>>;

/// The way from a rank to the next over other nodes, where the two have no fast link of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Detour {
    /// From the rank's node on; the last one ends where the next rank is. At least two.
    pub(crate) legs: Vec<Leg>,
}

/// From one node to another that it has a link to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Leg {
    pub(crate) from: NodeId,
    pub(crate) own: PathEnd,
    pub(crate) other: PathEnd,
}

/// What a rank must know of the ring to open its edges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Neighbours {
    previous: RankKey,
    next: RankKey,
    ways: Vec<Way>,
}

impl Neighbours {
    /// Of each rank in order; the last one's next is the first. `entries` are where the detours of those ranks
    /// begin that have one.
    pub(crate) fn on_ring(staged: &[StagedAt], hops: &Hops, entries: &[Option<Way>]) -> Vec<Self> {
        let world = staged.len();
        let of = |k: usize| {
            let next = staged[(k + 1) % world];
            let previous = staged[(k + world - 1) % world].key;
            let pairs = hops.get(k).into_iter().flatten();
            let direct = pairs.map(|(own, other)| Way::between(own, other, next.port));
            let ways = direct.chain(entries.get(k).cloned().flatten()).collect();
            Self { previous, next: next.key, ways }
        };
        (0..world).map(of).collect()
    }

    pub(crate) fn to_rank(&self) -> ToRank {
        let Self { previous, next, ways } = self.clone();
        ToRank::Connect { previous, next, ways }
    }

    pub(crate) fn request(&self, pipeline: daisy_proto::PipelineId) -> Request {
        let Self { previous, next, ways } = self.clone();
        Request::Connect { pipeline, previous, next, ways }
    }
}

/// Where a rank listens: on loopback for one on the same machine, else on all addresses of its node, for the
/// rank before it may have to come by another one later. Keys, not addresses, decide who comes in.
pub(crate) fn bind_ip(incoming: &[(PathEnd, PathEnd)], interfaces: &[Interface]) -> IpAddr {
    let mut ips = incoming.iter().map(|(_, listener)| listener.ip);
    match ips.next() {
        None => Ipv4Addr::LOCALHOST.into(),
        Some(first) if first.is_loopback() => first,
        Some(first) => {
            let mut own = interfaces.iter().flat_map(|interface| &interface.addrs);
            // A machine without IPv6 has the other family left.
            if first.is_ipv6() || ips.any(|ip| ip.is_ipv6()) || own.any(|addr| addr.ip.is_ipv6()) {
                Ipv6Addr::UNSPECIFIED.into()
            } else {
                Ipv4Addr::UNSPECIFIED.into()
            }
        }
    }
}

/// Starts a rank on a peer.
pub(crate) async fn stage_at(peer: &Peer, start: RankStart) -> Result<StagedAt, String> {
    match peer.call(Request::Stage(start), STAGE_MAX).await {
        Ok(Response::Staged { pid, key, port }) => Ok(StagedAt { pid, key, port }),
        Ok(Response::Refused(refusal)) => Err(refusal.message),
        Ok(other) => Err(format!("answered out of turn: {other:?}")),
        Err(error) => Err(error.to_string()),
    }
}

/// Longer than a rank process may take to listen.
const STAGE_MAX: Duration = Duration::from_secs(25);

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use daisy_proto::{Address, Device, LinkKind};

    use super::*;

    fn staged(n: u8) -> StagedAt {
        StagedAt { pid: n.into(), key: RankKey([n; 32]), port: n.into() }
    }

    fn end(name: &str, ip: &str) -> PathEnd {
        let device = Device { name: name.to_owned(), index: 3 };
        PathEnd { device, kind: LinkKind::WiFi, ip: ip.parse().expect("an ip") }
    }

    #[test]
    fn every_rank_dials_the_next_and_the_last_the_first() {
        let hop =
            |n: u8| vec![(end("a", &format!("10.0.0.{n}")), end("b", &format!("10.0.1.{n}")))];
        let hops = vec![hop(1), hop(2), hop(3)];
        let ring = Neighbours::on_ring(&[staged(1), staged(2), staged(3)], &hops, &[]);
        let keys: Vec<_> = ring.iter().map(|n| (n.previous.0[0], n.next.0[0])).collect();
        assert_eq!(keys, [(3, 2), (1, 3), (2, 1)]);
        let [way] = &ring[2].ways[..] else { panic!("{ring:?}") };
        assert_eq!(way.addr.to_string(), "10.0.1.3:1", "the first rank's port");
        assert_eq!(way.device.as_ref().map(|device| device.name.as_str()), Some("a"));
        let alone = Neighbours::on_ring(&[staged(1)], &Hops::default(), &[]);
        assert_eq!((alone[0].previous.0[0], alone[0].next.0[0]), (1, 1));
        let entry = Way::from(SocketAddr::from(([10, 0, 0, 9], 77)));
        let hops = vec![hop(1), hop(2), Vec::new()];
        let entries = [None, None, Some(entry.clone())];
        let ring = Neighbours::on_ring(&[staged(1), staged(2), staged(3)], &hops, &entries);
        assert_eq!(ring[2].ways, [entry], "the last one goes a way round");
        assert_eq!(ring[1].ways.len(), 1);
    }

    #[test]
    fn a_rank_listens_where_the_one_before_it_comes() {
        let from = |ips: &[&str]| -> Vec<(PathEnd, PathEnd)> {
            ips.iter().map(|ip| (end("a", "10.0.0.9"), end("b", ip))).collect()
        };
        let interface = |ip: &str| Interface {
            device: Device { name: "b".to_owned(), index: 4 },
            kind: LinkKind::WiFi,
            mtu: 1500,
            addrs: vec![Address { ip: ip.parse().expect("an ip"), prefix: 24 }],
        };
        let (v4, both) = ([interface("10.0.0.1")], [interface("10.0.0.1"), interface("fe80::1")]);
        for (ips, interfaces, expected) in [
            (&[][..], &v4[..], "127.0.0.1"),
            (&["127.0.0.1"], &both, "127.0.0.1"),
            (&["10.0.0.1"], &v4, "0.0.0.0"),
            (&["10.0.0.1"], &both, "::"),
            (&["10.0.0.1", "fe80::1"], &both, "::"),
            (&["fe80::1"], &both, "::"),
        ] {
            assert_eq!(bind_ip(&from(ips), interfaces).to_string(), expected, "{ips:?}");
        }
        let link_local = Way::between(&end("a", "fe80::1"), &end("b", "fe80::2"), 9);
        assert_eq!(link_local.addr.to_string(), "[fe80::2%3]:9", "the scope is the dialler's own");
        assert_eq!(Way::between(&end("lo", "127.0.0.1"), &end("lo", "127.0.0.1"), 9).device, None);
    }
}
