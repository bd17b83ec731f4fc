//! Ranks between their start and their first frame: where each runs and listens, and who its
//! neighbours are.

use std::net::SocketAddr;
use std::time::Duration;

use daisy_proto::control::{RankKey, Request, Response};
use daisy_proto::local::{RankStart, ToRank};

use super::hosting::rescoped;
use super::peers::Peer;

/// Where a staged rank runs and listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StagedAt {
    pub(crate) pid: u32,
    pub(crate) key: RankKey,
    pub(crate) addrs: Vec<SocketAddr>,
}

/// What a rank must know of the ring to open its edges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Neighbours {
    previous: RankKey,
    next: RankKey,
    next_addrs: Vec<SocketAddr>,
}

impl Neighbours {
    /// Of each rank in order; the last one's next is the first.
    pub(crate) fn on_ring(staged: &[StagedAt]) -> Vec<Self> {
        let world = staged.len();
        let of = |k: usize| {
            let next = staged[(k + 1) % world].clone();
            let previous = staged[(k + world - 1) % world].key;
            Self { previous, next: next.key, next_addrs: next.addrs }
        };
        (0..world).map(of).collect()
    }

    pub(crate) fn to_rank(&self) -> ToRank {
        let Self { previous, next, next_addrs } = self.clone();
        ToRank::Connect { previous, next, next_addrs }
    }

    pub(crate) fn request(&self, pipeline: daisy_proto::PipelineId) -> Request {
        let Self { previous, next, next_addrs } = self.clone();
        Request::Connect { pipeline, previous, next, next_addrs }
    }
}

/// Starts a rank on a peer.
pub(crate) async fn stage_at(peer: &Peer, start: RankStart) -> Result<StagedAt, String> {
    match peer.call(Request::Stage(start), STAGE_MAX).await {
        Ok(Response::Staged { pid, key, addrs }) => {
            Ok(StagedAt { pid, key, addrs: rescoped(addrs, peer.remote) })
        }
        Ok(Response::Refused(refusal)) => Err(refusal.message),
        Ok(other) => Err(format!("answered out of turn: {other:?}")),
        Err(error) => Err(error.to_string()),
    }
}

/// Longer than a rank process may take to listen.
const STAGE_MAX: Duration = Duration::from_secs(25);

#[cfg(test)]
mod tests {
    use super::*;

    fn staged(n: u8) -> StagedAt {
        let addr = SocketAddr::from(([127, 0, 0, 1], u16::from(n)));
        StagedAt { pid: n.into(), key: RankKey([n; 32]), addrs: vec![addr] }
    }

    #[test]
    fn every_rank_dials_the_next_and_the_last_the_first() {
        let ring = Neighbours::on_ring(&[staged(1), staged(2), staged(3)]);
        let keys: Vec<_> = ring.iter().map(|n| (n.previous.0[0], n.next.0[0])).collect();
        assert_eq!(keys, [(3, 2), (1, 3), (2, 1)]);
        assert_eq!(ring[2].next_addrs, staged(1).addrs);
        let alone = Neighbours::on_ring(&[staged(1)]);
        assert_eq!((alone[0].previous.0[0], alone[0].next.0[0]), (1, 1));
    }
}
