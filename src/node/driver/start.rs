//! From a plan to a chain that works: every rank is started, told its neighbours, and warmed up.

use std::net::SocketAddr;
use std::sync::Arc;

use daisy_proto::control::{Request, Response, Way};
use daisy_proto::local::{Admit, PlannedShard, RankStart, ToRank};
use daisy_proto::{NodeId, Rank, Sampling};
use tokio::sync::mpsc;

use super::{CALL_MAX, Driver, EVENTS_MAX, Event, WARM_UP};
use crate::net::UdpRelay;
use crate::node::ranks::RankProcess;
use crate::node::relay::relay;
use crate::node::requests::Requests;
use crate::node::staging::{Detour, Leg, Neighbours, StagedAt, bind_ip, stage_at};

impl Driver {
    /// Starts every rank process; each answers by an event.
    pub(super) fn stage(&self) {
        for (shard, peer) in self.planned.iter().zip(&self.peers) {
            let start = self.rank_start(shard);
            let events = self.events_in.clone();
            if let Some(peer) = peer.clone() {
                let rank = shard.rank;
                tokio::spawn(async move {
                    let staged = stage_at(&peer, start).await;
                    let _ = events.send(Event::PeerStaged(rank, staged)).await;
                });
            } else {
                let machine = Arc::clone(&self.node.machine);
                tokio::spawn(async move {
                    let ranks = relay(EVENTS_MAX, events.clone(), Event::Local);
                    let started = RankProcess::start(start, &machine, ranks).await;
                    let staged = started.map_err(|error| error.to_string());
                    let _ = events.send(Event::LocalStaged(staged)).await;
                });
            }
        }
    }

    fn rank_start(&self, shard: &PlannedShard) -> RankStart {
        let world = self.planned.len();
        let before = (shard.rank.0 as usize + world - 1) % world;
        let interfaces = &self.about[shard.rank.0 as usize].interfaces;
        let incoming = match &self.detours[before] {
            Some(Detour { legs }) => {
                legs.last().map(|leg| (leg.own.clone(), leg.other.clone())).into_iter().collect()
            }
            None => self.hops[before].clone(),
        };
        let bind = bind_ip(&incoming, interfaces);
        RankStart {
            pipeline: self.id,
            rank: shard.rank,
            world: u32::try_from(self.planned.len()).unwrap_or(u32::MAX),
            shard: shard.shard,
            checkpoint: self.wish.model.clone(),
            dtype: self.wish.dtype,
            bind: SocketAddr::new(bind, 0),
            chunk: self.wish.chunk,
            budget: self.budget,
            needs_bytes: self.needs.get(shard.rank.0 as usize).copied().unwrap_or_default(),
        }
    }

    pub(super) fn local_staged(&mut self, process: RankProcess) {
        let RankProcess { pid, key, port, .. } = process;
        self.staged[0] = Some(StagedAt { pid, key, port });
        if let Some(submissions) = self.submissions.take() {
            let (requests, inputs) = mpsc::channel(EVENTS_MAX);
            let text = Arc::clone(&self.model.text);
            let state = self.endpoint.state();
            let task = Requests::new(text, self.context, process.sender(), state);
            tokio::spawn(task.run(submissions, inputs));
            self.requests = Some(requests);
        }
        self.local = Some(process);
    }

    /// All ranks listen: tells each who its neighbours are. Else: the rank that cannot reach the next one, and
    /// why.
    pub(super) async fn connect(&mut self) -> Result<(), (Rank, String)> {
        let staged: Vec<StagedAt> = self.staged.iter().flatten().copied().collect();
        let mut entries = vec![None; staged.len()];
        for (rank, detour) in (0..).map(Rank).zip(self.detours.clone()) {
            let Some(detour) = detour else { continue };
            let at = rank.0 as usize;
            let next = staged[(at + 1) % staged.len()];
            entries[at] = Some(self.pave(&detour, next.port).await.map_err(|why| (rank, why))?);
        }
        let ring = Neighbours::on_ring(&staged, &self.hops, &entries);
        for (neighbours, peer) in ring.iter().zip(&self.peers) {
            if let Some(peer) = peer {
                // A peer that does not answer is lost, and its connection says so.
                let _ = peer.call(neighbours.request(self.id), CALL_MAX).await;
            } else if let Some(local) = &self.local {
                local.send(neighbours.to_rank()).await;
            }
        }
        Ok(())
    }

    /// Has every node of a detour pass on what leads to this port at its end; where it begins.
    async fn pave(&mut self, detour: &Detour, port: u16) -> Result<Way, String> {
        let mut port = port;
        for Leg { from, own, other } in detour.legs[1..].iter().rev() {
            let to = Way::between(own, other, port);
            port = self.relay_at(*from, to).await?;
        }
        let Leg { own, other, .. } = &detour.legs[0];
        Ok(Way::between(own, other, port))
    }

    async fn relay_at(&mut self, id: NodeId, to: Way) -> Result<u16, String> {
        let ranks = self.peers.iter().flatten();
        let others = self.between.iter().filter_map(|member| Some(&member.peer.as_ref()?.0));
        let Some(peer) = ranks.chain(others).find(|peer| peer.id == id) else {
            let relay = UdpRelay::open(to).map_err(|error| error.to_string())?;
            let port = relay.port();
            self.relays.push(relay);
            return Ok(port);
        };
        match peer.call(Request::Relay { pipeline: self.id, to }, CALL_MAX).await {
            Ok(Response::Relaying { port }) => Ok(port),
            Ok(Response::Refused(refusal)) => Err(refusal.message),
            Ok(other) => Err(format!("{} answered out of turn: {other:?}", peer.remote)),
            Err(error) => Err(error.to_string()),
        }
    }

    /// One short sequence through the whole chain, so that ready means ready.
    pub(super) async fn warm_up(&mut self) {
        let admit = Admit {
            seq: WARM_UP,
            prompt: vec![0],
            max_tokens: 2,
            eos: Vec::new(),
            sampling: Sampling::greedy(),
            bias: Vec::new(),
            logprobs: None,
        };
        if let Some(local) = &self.local {
            local.send(ToRank::Admit(admit)).await;
        }
    }
}
