//! From a plan to a chain that works: every rank is started, told its neighbours, and warmed up.

use std::net::SocketAddr;
use std::sync::Arc;

use daisy_proto::Sampling;
use daisy_proto::local::{Admit, PlannedShard, RankStart, ToRank};
use tokio::sync::mpsc;

use super::{CALL_MAX, Driver, EVENTS_MAX, Event, WARM_UP};
use crate::node::ranks::RankProcess;
use crate::node::relay::relay;
use crate::node::requests::Requests;
use crate::node::staging::{Neighbours, StagedAt, bind_ip, stage_at};

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
        let bind = bind_ip(&self.hops[before], interfaces);
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

    /// All ranks listen: tells each who its neighbours are.
    pub(super) async fn connect(&mut self) {
        let staged: Vec<StagedAt> = self.staged.iter().flatten().copied().collect();
        for (neighbours, peer) in Neighbours::on_ring(&staged, &self.hops).iter().zip(&self.peers) {
            if let Some(peer) = peer {
                // A peer that does not answer is lost, and its connection says so.
                let _ = peer.call(neighbours.request(self.id), CALL_MAX).await;
            } else if let Some(local) = &self.local {
                local.send(neighbours.to_rank()).await;
            }
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
