//! `daisy cluster peers`: which other nodes there are, from the running node, or by looking for them
//! here for two seconds.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use daisy_proto::local::{FromNode, LinkStatus, PeerState, PeerStatus, PeersView, ToNode};
use daisy_proto::{Facts, Pressure};
use serde_json::{Value, json};
use tokio::net::UnixStream;

use super::cluster::{default_listen, runtime};
use super::{Failure, render, status};
use crate::discovery::{Discovery, Seen, Sighting, Wish, interface_towards, interfaces};
use crate::identity::Peers as PeersFile;
use crate::ipc::{Reader, Writer};
use crate::links;

#[derive(Debug, Args)]
pub(crate) struct Peers {
    /// Machine-readable
    #[arg(long)]
    json: bool,
    /// Show it again each second until Ctrl+C
    #[arg(long)]
    watch: bool,
}

impl Peers {
    pub(crate) fn run(self, home: &Path) -> Result<(), Failure> {
        let runtime = runtime()?;
        let outcome = runtime.block_on(async {
            loop {
                let (view, from) = match status::connect(home).await {
                    Ok(stream) => (ask(stream).await?, From::Node),
                    Err(_) => (look(home).await?, From::Here),
                };
                if self.json {
                    render::json(&document(&view, from));
                } else {
                    render::peers(&view, from, self.watch);
                }
                if !self.watch {
                    return Ok(());
                }
                tokio::time::sleep(WATCH_INTERVAL).await;
            }
        });
        runtime.shutdown_background();
        outcome
    }
}

/// Who says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum From {
    /// The node that runs on this machine.
    Node,
    /// None runs: this command looked by itself.
    Here,
}

async fn ask(stream: UnixStream) -> Result<PeersView, Failure> {
    let (read, write) = stream.into_split();
    Writer::new(write).write(&ToNode::Peers).await.context("cannot ask the node")?;
    match Reader::new(read).read().await.context("cannot hear the node")? {
        Some(FromNode::Peers(view)) => Ok(view),
        other => Err(anyhow::anyhow!("the node answered out of turn: {other:?}"))?,
    }
}

async fn look(home: &Path) -> Result<PeersView, Failure> {
    render::looking(LOOK.as_secs());
    let file = PeersFile::load(home).map_err(anyhow::Error::from)?;
    let known: Vec<_> = file.list().to_vec();
    let ids: Vec<_> = known.iter().map(|peer| peer.id).collect();
    let is_paired = Arc::new(move |id: &_| ids.contains(id));
    let listen = default_listen().ip();
    let wish = Wish { own: None, listen, is_paired };
    let discovery = Discovery::start(wish).map_err(anyhow::Error::from)?;
    tokio::time::sleep(LOOK).await;
    let seen = Arc::clone(&discovery.seen().borrow());
    let stopped = tokio::task::spawn_blocking(|| discovery.stop());
    let view = view_of(&seen, &known, interfaces(listen));
    stopped.await.context("discovery")?;
    Ok(view)
}

/// What can be said without asking anybody.
fn view_of(seen: &Seen, known: &[crate::identity::Peer], interfaces: Vec<String>) -> PeersView {
    let mut peers: Vec<PeerStatus> = seen
        .nodes
        .values()
        .map(|sighting| {
            let paired = known.iter().any(|peer| peer.id == sighting.advert.id);
            seen_row(sighting, paired)
        })
        .collect();
    let missing = known.iter().filter(|peer| !seen.nodes.contains_key(&peer.id));
    peers.extend(missing.map(|peer| PeerStatus {
        id: peer.id,
        name: peer.name.clone(),
        build: None,
        paired: true,
        state: PeerState::Gone,
        addr: None,
        interface: None,
        age_ms: None,
        reason: Some("not seen".to_owned()),
        remedy: Some("check that `daisy cluster up` runs there, and the cable".to_owned()),
        facts: None,
        link: None,
    }));
    peers.sort_by_key(|row| (!row.paired, row.name.clone(), row.id));
    PeersView { peers, interfaces, hidden: seen.hidden, faults: Vec::new() }
}

fn seen_row(sighting: &Sighting, paired: bool) -> PeerStatus {
    let advert = &sighting.advert;
    let addr = sighting.addrs.first().copied();
    let (state, remedy) = if paired {
        (PeerState::Connecting, "daisy cluster up")
    } else {
        (PeerState::Unpaired, "daisy cluster pair")
    };
    PeerStatus {
        id: advert.id,
        name: Some(advert.name.clone()),
        build: Some(advert.build.clone()),
        paired,
        state,
        addr,
        interface: addr.and_then(interface_towards),
        age_ms: None,
        reason: paired.then(|| "seen, not asked: no node runs on this machine".to_owned()),
        remedy: Some(remedy.to_owned()),
        facts: None,
        link: None,
    }
}

fn document(view: &PeersView, from: From) -> Value {
    let peers: Vec<Value> = view
        .peers
        .iter()
        .map(|peer| {
            json!({
                "id": peer.id.to_string(),
                "name": peer.name.as_ref().map(ToString::to_string),
                "version": peer.build,
                "paired": peer.paired,
                "state": state_word(peer.state),
                "address": peer.addr.map(|addr| addr.to_string()),
                "interface": peer.interface,
                "age_ms": peer.age_ms,
                "reason": peer.reason,
                "remedy": peer.remedy,
                "facts": peer.facts.as_ref().map(facts),
                "link": peer.link.as_ref().map(link),
            })
        })
        .collect();
    let faults: Vec<Value> = view
        .faults
        .iter()
        .map(|fault| json!({ "message": fault.message, "hints": fault.hints }))
        .collect();
    json!({
        "node_runs": from == From::Node,
        "interfaces": view.interfaces,
        "peers": peers,
        "hidden": view.hidden,
        "faults": faults,
    })
}

fn facts(facts: &Facts) -> Value {
    let pressure = facts.pressure.map(|pressure| match pressure {
        Pressure::Normal => "normal",
        Pressure::Warning => "warning",
        Pressure::Critical => "critical",
    });
    let power = facts.power.map(|power| {
        json!({
            "on_battery": power.on_battery,
            "charge_percent": power.charge_percent,
            "low_power": power.low_power,
        })
    });
    json!({
        "chip": facts.chip,
        "memory_bytes_per_s": facts.memory_bytes_per_s,
        "os": facts.os,
        "memory_bytes": facts.memory_bytes,
        "available_bytes": facts.available_bytes,
        "memory_limit_bytes": facts.memory_limit_bytes,
        "gpu_limit_bytes": facts.gpu_limit_bytes,
        "swap_used_bytes": facts.swap_used_bytes,
        "pressure": pressure,
        "power": power,
    })
}

fn link(link: &LinkStatus) -> Value {
    let LinkStatus { devices: [own, other], kind, sample } = link;
    json!({
        "interface": own,
        "peer_interface": other,
        "kind": links::kind_name(*kind),
        "rtt_median_us": sample.rtt_median_us,
        "rtt_worst_us": sample.rtt_worst_us,
        "bit_per_s": sample.bit_per_s,
    })
}

/// The same words in the table and in JSON.
pub(crate) fn state_word(state: PeerState) -> &'static str {
    match state {
        PeerState::Ready => "ready",
        PeerState::Connecting => "connecting",
        PeerState::Gone => "gone",
        PeerState::Unpaired => "unpaired",
        PeerState::OneSided => "one-sided",
        PeerState::OtherVersion => "other version",
    }
}

const LOOK: Duration = Duration::from_secs(2);
const WATCH_INTERVAL: Duration = Duration::from_secs(1);
