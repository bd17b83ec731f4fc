//! From a wish to a plan: gathers the nodes, measures the ways between them where that matters, and
//! lets [`crate::plan`] decide. Nothing is loaded or changed anywhere.

use std::sync::Arc;

use daisy_proto::local::{Headroom, LinkWish, Nodes, Refusal, RefusalKind, Serve};
use daisy_proto::plan::PlanReport;
use daisy_proto::{Dtype, Facts, NodeId, NodeLink};
use futures::future::join_all;

use super::Node;
use super::members::{Joined, Member, choose, gather, join_up, link_between};
use super::model::Model;
use super::staging::{self, Detour, Leg};
use crate::plan::{self, Ceiling, Cut, Hop, Hops, RESERVE_USUAL, Speed, Task, Wish, chips, report};
use crate::{links, preflight};

/// A machine that may hold a rank.
#[derive(Debug, Clone)]
pub(crate) struct Machine {
    pub(crate) name: String,
    pub(crate) facts: Facts,
}

/// A model, the nodes that hold its ranks, and why these.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) model: Model,
    pub(crate) report: PlanReport,
    /// In the order of ranks.
    pub(crate) members: Vec<Member>,
    /// Nodes without a rank that pass hidden states on.
    pub(crate) between: Vec<Member>,
    /// From each rank to the next.
    pub(crate) hops: staging::Hops,
    pub(crate) detours: Vec<Option<Detour>>,
    /// What carries each edge, in words; none within one node.
    pub(crate) best: Vec<Option<String>>,
}

/// Plans what the user wants; all that is wrong is told at once.
pub(crate) async fn prepare(node: &Arc<Node>, wish: &Serve) -> Result<Prepared, Refusal> {
    let dir = wish.model.clone();
    let opened = tokio::task::spawn_blocking(move || Model::open(&dir)).await;
    let model = opened.map_err(|error| cannot(error.to_string()))??;
    let mut addrs = node.peers.clone();
    addrs.extend(wish.peers.iter().filter(|addr| !node.peers.contains(addr)));
    let (members, fault) = gather(node, &addrs, wish, &model.name, &model.digest).await?;
    let mut ways = Ways::none();
    let planned = decide(node, &model, &members, wish, &mut ways).await;
    let mut report = match (planned, fault) {
        (Ok(report), None) => report,
        (Ok(_), Some(fault)) => return Err(fault),
        (Err(refusal), fault) => return Err(preflight::together(fault, refusal)),
    };
    let mut waiting: Vec<Option<Member>> = members.into_iter().map(Some).collect();
    let ranks = report.ranks.iter().filter_map(|rank| {
        let is_there = |member: &&mut Option<Member>| {
            member.as_ref().is_some_and(|member| member.id == rank.planned.node)
        };
        waiting.iter_mut().find(is_there).and_then(Option::take)
    });
    let members: Vec<Member> = ranks.collect();
    let hidden_bytes = model.hidden_bytes();
    let Joined { hops, detours, best, notes } =
        join_up(node, &members, &ways, wish, hidden_bytes).await?;
    report.notes.extend(notes);
    let is_between = |member: &Member| {
        let legs = detours.iter().flatten().flat_map(|detour| &detour.legs[1..]);
        legs.into_iter().any(|leg| leg.from == member.id)
    };
    let between = waiting.into_iter().flatten().filter(is_between).collect();
    Ok(Prepared { model, report, members, between, hops, detours, best })
}

/// The links between members that may carry hidden states, and the shortest ways over them.
#[derive(Debug)]
pub(crate) struct Ways {
    /// In the order of the members.
    nodes: Vec<(NodeId, String)>,
    links: Vec<NodeLink>,
    hops: Hops,
}

impl Ways {
    fn none() -> Self {
        Self { nodes: Vec::new(), links: Vec::new(), hops: Hops::none(0) }
    }

    /// Between two that have no link for it: over others; none: there is no way.
    pub(crate) fn detour(&self, from: NodeId, to: NodeId, wish: &LinkWish) -> Option<Detour> {
        let at = |id: NodeId| self.nodes.iter().position(|(known, _)| *known == id);
        let (start, end) = (at(from)?, at(to)?);
        let between = self.hops.detour(start, end);
        if between.is_empty() {
            return None;
        }
        let stops: Vec<NodeId> =
            [start].into_iter().chain(between).chain([end]).map(|at| self.nodes[at].0).collect();
        let leg = |pair: &[NodeId]| {
            let [from, to] = *pair else { return None };
            let joins = |link: &&NodeLink| link.nodes == [from, to] || link.nodes == [to, from];
            let link = self.links.iter().find(joins)?;
            let (own, other) = links::ends(link, links::usable(link, wish).next()?, from);
            Some(Leg { from, own: own.clone(), other: other.clone() })
        };
        let legs: Option<Vec<Leg>> = stops.windows(2).map(leg).collect();
        Some(Detour { legs: legs? })
    }

    /// A member as people know it.
    pub(crate) fn quoted(&self, id: NodeId) -> String {
        let name = self.nodes.iter().find(|(known, _)| *known == id).map(|(_, name)| name.as_str());
        format!("`{}`", name.unwrap_or_default())
    }
}

/// The plan for machines that are only described; the first one drives.
pub(crate) fn plan_for(
    wish: &Serve,
    machines: &[Machine],
    hops: &Hops,
) -> Result<PlanReport, Refusal> {
    let model = Model::open(&wish.model)?;
    let names: Vec<String> = machines.iter().map(|machine| machine.name.clone()).collect();
    let chosen = choose(&names, wish)?;
    let machines: Vec<Machine> = chosen.iter().map(|at| machines[*at].clone()).collect();
    let nodes = nodes(&machines, &wish.headroom)?;
    let costs = model.costs(dtype(&model, &machines, wish))?;
    let ids = vec![NodeId([0; 32]); nodes.len()];
    let hops = hops.among(&chosen).with_detours();
    let task = Task { name: &model.name, model: &costs, nodes: &nodes, ids: &ids, hops: &hops };
    report(&task, &wanted(wish)).map_err(|error| error.refusal(&model.name))
}

async fn decide(
    node: &Node,
    model: &Model,
    members: &[Member],
    wish: &Serve,
    ways: &mut Ways,
) -> Result<PlanReport, Refusal> {
    let machines: Vec<Machine> = members.iter().map(Member::machine).collect();
    let nodes = nodes(&machines, &wish.headroom)?;
    let costs = model.costs(dtype(model, &machines, wish))?;
    let ids: Vec<_> = members.iter().map(|member| member.id).collect();
    let wanted = wanted(wish);
    let refused = |error: plan::PlanError| error.refusal(&model.name);
    let ideal = Hops::ideal(nodes.len());
    let task = Task { name: &model.name, model: &costs, nodes: &nodes, ids: &ids, hops: &ideal };
    // What memory alone forbids is known before anything is measured.
    let by_memory = report(&task, &wanted).map_err(refused)?;
    if members.len() == 1 {
        return Ok(by_memory);
    }
    *ways = measured(node, members, wish).await;
    match report(&Task { hops: &ways.hops, ..task }, &wanted) {
        // The links are to blame, and who joins these nodes up says how.
        Err(_) => Ok(by_memory),
        found => found.map_err(refused),
    }
}

/// The best way between any two members that may carry hidden states.
async fn measured(node: &Node, members: &[Member], wish: &Serve) -> Ways {
    let mut hops = Hops::none(members.len());
    let mut found = Vec::new();
    let pairs = (0..members.len()).flat_map(|a| (0..a).map(move |b| (a, b)));
    let links = pairs
        .map(|(a, b)| async move { (a, b, link_between(node, &members[a], &members[b]).await) });
    for (a, b, link) in join_all(links).await {
        let Ok(link) = link else { continue };
        let Some(sample) = links::usable(&link, &wish.links).find_map(links::figures) else {
            continue;
        };
        let one_way_ns = u64::from(sample.rtt_median_us) * 500;
        hops.set(a, b, Hop { one_way_ns, bit_per_s: sample.bit_per_s });
        found.push(link);
    }
    let nodes = members.iter().map(|member| (member.id, member.facts.name.to_string()));
    Ways { nodes: nodes.collect(), links: found, hops: hops.with_detours() }
}

fn wanted(wish: &Serve) -> Wish {
    let cut = match (&wish.layers[..], &wish.nodes) {
        ([], Nodes::Best) => Cut::Best,
        ([], Nodes::Count(ranks)) => Cut::Ranks(*ranks),
        ([], Nodes::All | Nodes::Named(_)) => Cut::All,
        (layers, _) => Cut::Layers(layers.to_vec()),
    };
    let &Serve { context, sequences, chunk, .. } = wish;
    Wish { cut, context, sequences, chunk }
}

/// The type that ranks compute in: where one computes on its CPU it takes the widest.
fn dtype(model: &Model, machines: &[Machine], wish: &Serve) -> Dtype {
    let on_cpu = machines.iter().any(|machine| machine.facts.gpu_limit_bytes.is_none());
    match wish.dtype {
        Some(dtype) => dtype,
        None if on_cpu => Dtype::F32,
        None => model.gpu_dtype(),
    }
}

/// The machines as the planner sees them.
fn nodes(machines: &[Machine], headroom: &Headroom) -> Result<Vec<plan::Node>, Refusal> {
    if let Headroom::ByName(list) = headroom {
        let is_there = |name: &String| machines.iter().any(|machine| machine.name == *name);
        if let Some((unknown, _)) = list.iter().find(|(name, _)| !is_there(name)) {
            let there: Vec<_> = machines.iter().map(|machine| machine.name.as_str()).collect();
            return Err(Refusal {
                message: format!("--headroom-gb: no node named `{unknown}` takes part"),
                hints: vec![format!("there are: {}", there.join(", "))],
                kind: RefusalKind::Usage,
            });
        }
    }
    let node = |(at, Machine { name, facts }): (usize, &Machine)| {
        let chip = facts.chip.as_deref().unwrap_or_default();
        plan::Node {
            name: name.clone(),
            total_bytes: facts.memory_bytes,
            available_bytes: facts.available_bytes,
            limit_bytes: facts.memory_limit_bytes,
            gpu_limit_bytes: facts.gpu_limit_bytes,
            swap_used_bytes: facts.swap_used_bytes,
            reserve_bytes: reserve(headroom, at, name),
            ceiling: ceiling(facts, chip),
            speed: Speed {
                bytes_per_s: facts.memory_bytes_per_s,
                flop_per_s: chips::flop_per_s(chip),
            },
        }
    };
    Ok(machines.iter().enumerate().map(node).collect())
}

/// As its user said, else that of an Apple GPU; no other is known to need one.
fn ceiling(facts: &Facts, chip: &str) -> Option<Ceiling> {
    let said = facts.ceiling_percent.map(|percent| Ceiling { percent });
    said.or_else(|| chips::is_apple(chip).then(|| Ceiling::of_apple(facts.memory_bytes)))
}

/// What the node at this place of the list keeps free.
fn reserve(headroom: &Headroom, at: usize, name: &str) -> u64 {
    let said = match headroom {
        Headroom::Usual => None,
        Headroom::InOrder(list) => list.get(at).or(list.last()).copied(),
        Headroom::ByName(list) => {
            list.iter().find_map(|(named, bytes)| (named == name).then_some(*bytes))
        }
    };
    said.unwrap_or(RESERVE_USUAL)
}

fn cannot(message: String) -> Refusal {
    Refusal { message, hints: Vec::new(), kind: RefusalKind::CannotBeDone }
}
