//! The two edges of a rank: from the previous rank and to the next. A chain of length one has
//! none; its frames turn round in this process.

use std::collections::VecDeque;
use std::time::Duration;

use daisy_proto::control::{RankKey, Way};
use daisy_proto::local::RankStart;
use daisy_proto::{CloseReason, Rank, Step};

use super::Event;
use crate::engine::{Carried, EngineError};
use crate::net::{
    EdgeConfig, EdgeListener, IncomingEdge, KeyPair, OutgoingEdge, Post, Reactor, edge,
};

/// Who stands beside this rank.
#[derive(Debug)]
pub(crate) struct Neighbours {
    pub previous: RankKey,
    pub next: RankKey,
    pub ways: Vec<Way>,
}

/// Where a rank's frames go, and what must stay open for them to come.
#[derive(Debug)]
pub(crate) enum Edges {
    Ring {
        incoming: IncomingEdge,
        outgoing: OutgoingEdge,
    },
    /// World size 1: the next rank is this one.
    Loop(VecDeque<(Step, Carried)>),
}

impl Edges {
    /// Starts to connect; [`crate::net::EdgeEvent`]s on `queue` tell how it goes.
    pub(crate) fn open(
        start: &RankStart,
        reactor: &Reactor,
        listener: EdgeListener,
        key: &KeyPair,
        neighbours: Neighbours,
        queue: &Post<Event>,
    ) -> Self {
        if start.world <= 1 {
            return Self::Loop(VecDeque::new());
        }
        let (previous, next) = ring(start.rank, start.world);
        let config = |peer, peer_key| EdgeConfig {
            pipeline: start.pipeline,
            me: start.rank,
            peer,
            peer_key,
            connect_timeout: CONNECT_MAX,
        };
        let from_previous = queue.clone();
        let incoming =
            edge::accept(reactor, listener, config(previous, neighbours.previous), move |event| {
                // The engine thread is gone only when the process is ending.
                let _ = from_previous.send(Event::Previous(event));
            });
        let from_next = queue.clone();
        let outgoing = edge::dial(
            reactor,
            key,
            neighbours.ways,
            config(next, neighbours.next),
            move |event| {
                let _ = from_next.send(Event::Next(event));
            },
        );
        Self::Ring { incoming, outgoing }
    }

    /// How many edges must open before the rank is ready.
    pub(crate) fn expected(&self) -> usize {
        match self {
            Self::Ring { .. } => 2,
            Self::Loop(_) => 0,
        }
    }

    /// Says whether the frame went on its way. Bytes for another rank are waited for.
    pub(crate) fn send(&mut self, step: Step, hidden: Carried) -> Result<bool, EngineError> {
        match self {
            Self::Ring { outgoing, .. } => {
                Ok(outgoing.send(step, hidden.into_bytes()?.data).is_ok())
            }
            Self::Loop(frames) => {
                frames.push_back((step, hidden));
                Ok(true)
            }
        }
    }

    /// The next frame that turned round in this process.
    pub(crate) fn looped(&mut self) -> Option<(Step, Carried)> {
        match self {
            Self::Ring { .. } => None,
            Self::Loop(frames) => frames.pop_front(),
        }
    }

    /// From now on two seconds of silence mean that a neighbour is lost.
    pub(crate) fn set_ready(&self) {
        if let Self::Ring { incoming, outgoing } = self {
            incoming.set_ready();
            outgoing.set_ready();
        }
    }

    /// Moves the edge to the next rank; one that turns round in this process has no way.
    pub(crate) fn reroute(&self, ways: Vec<Way>) {
        if let Self::Ring { outgoing, .. } = self {
            outgoing.reroute(ways);
        }
    }

    pub(crate) fn close(self, reason: CloseReason) {
        if let Self::Ring { incoming, outgoing } = self {
            incoming.close(reason);
            outgoing.close(reason);
        }
    }
}

/// The ranks before and after `rank` on the ring.
pub(crate) fn ring(rank: Rank, world: u32) -> (Rank, Rank) {
    (Rank((rank.0 + world - 1) % world), Rank((rank.0 + 1) % world))
}

/// All ranks listen before any is told to connect, so this covers a busy machine only.
const CONNECT_MAX: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_rank_leads_back_to_the_first() {
        assert_eq!(ring(Rank(0), 3), (Rank(2), Rank(1)));
        assert_eq!(ring(Rank(2), 3), (Rank(1), Rank(0)));
        assert_eq!(ring(Rank(0), 1), (Rank(0), Rank(0)));
    }
}
