//! A plan in words and figures: what a person decides by, and what else there would be.

use daisy_proto::NodeId;
use daisy_proto::local::PlannedShard;
use daisy_proto::plan::{FirstToken, OtherPlan, PlanReport, PlannedRank, Prediction};

use super::node::{Node, RESERVE_USUAL};
use super::{Cut, Hops, Model, PROMPT, Plan, PlanError, Ranked, Wish, plan};

/// What is planned: a model for nodes and the ways between them.
#[derive(Debug, Clone, Copy)]
pub struct Task<'a> {
    pub name: &'a str,
    pub model: &'a Model,
    /// The driver first.
    pub nodes: &'a [Node],
    /// In the same order.
    pub ids: &'a [NodeId],
    pub hops: &'a Hops,
}

/// Plans, and looks at what else could be done.
pub fn report(task: &Task<'_>, wish: &Wish) -> Result<PlanReport, PlanError> {
    let plan = plan(task.model, task.nodes, task.hops, wish)?;
    let rank = |ranked: &Ranked| PlannedRank {
        planned: PlannedShard {
            rank: ranked.rank,
            node: task.ids[ranked.node],
            node_name: task.nodes[ranked.node].name.clone(),
            shard: ranked.shard,
            weight_bytes: ranked.fit.weight_bytes,
        },
        work_bytes: ranked.fit.work_bytes,
        spare_bytes: ranked.fit.spare.bytes,
        margin_bytes: ranked.fit.margin_bytes(),
        bound: ranked.fit.bound().to_string(),
    };
    Ok(PlanReport {
        model: task.name.to_owned(),
        ranks: plan.ranks.iter().map(rank).collect(),
        context: plan.context,
        context_max: plan.context_max,
        sequences: wish.sequences,
        prediction: prediction(&plan, task.model),
        others: others(task, wish, &plan),
        notes: notes(task, &plan),
    })
}

fn prediction(plan: &Plan, model: &Model) -> Prediction {
    let us = |ns: u64| ns / 1000;
    let prompt_tokens = PROMPT.min(model.context_max);
    Prediction {
        token_us: us(plan.token_ns),
        hops_us: us(plan.hops_ns),
        first_token: plan.first_token_ns.map(|ns| FirstToken { prompt_tokens, us: us(ns) }),
    }
}

/// The same model on this node alone, on all nodes, and on one node more than the plan has.
fn others(task: &Task<'_>, wish: &Wish, chosen: &Plan) -> Vec<OtherPlan> {
    let names = |nodes: &[usize]| {
        let names =
            nodes.iter().filter(|node| **node != 0).map(|node| task.nodes[*node].name.clone());
        names.collect::<Vec<_>>().join(",")
    };
    let used: Vec<usize> = chosen.ranks.iter().map(|ranked| ranked.node).collect();
    let count = task.nodes.len();
    let mut others = Vec::new();
    let mut offer = |what: String, nodes: &str, cut: Cut, subset: &[usize]| {
        let of = |node: &usize| task.nodes[*node].clone();
        let nodes_there: Vec<Node> = subset.iter().map(of).collect();
        let hops = task.hops.among(subset).with_detours();
        let wish = Wish { cut, context: None, ..wish.clone() };
        let Ok(plan) = plan(task.model, &nodes_there, &hops, &wish) else { return };
        others.push(OtherPlan {
            what,
            args: vec!["--nodes".to_owned(), nodes.to_owned()],
            context_max: plan.context_max,
            prediction: prediction(&plan, task.model),
        });
    };
    if used.len() > 1 {
        offer(format!("on `{}` alone", task.nodes[0].name), "1", Cut::Ranks(1), &[0]);
    }
    for more in (1..count).filter(|node| !used.contains(node)) {
        let mut joined: Vec<usize> = used.clone();
        joined.push(more);
        joined.sort_unstable();
        // With two nodes that is all of them, and said below.
        if joined.len() < count {
            let what = format!("with `{}` too", task.nodes[more].name);
            offer(what, &names(&joined), Cut::All, &joined);
        }
    }
    if used.len() < count {
        let all: Vec<usize> = (0..count).collect();
        offer(format!("over all {count} nodes"), "all", Cut::All, &all);
    }
    others
}

fn notes(task: &Task<'_>, plan: &Plan) -> Vec<String> {
    let mut notes = Vec::new();
    for ranked in &plan.ranks {
        let Node { name, reserve_bytes, speed, .. } = &task.nodes[ranked.node];
        if *reserve_bytes < RESERVE_USUAL && ranked.fit.margin_bytes() < RESERVE_USUAL {
            notes.push(format!(
                "`{name}` keeps little to run: when other programs grow it swaps, and an answer \
                 can take minutes or never end"
            ));
        }
        if speed.bytes_per_s.is_none() && plan.ranks.len() > 1 {
            notes.push(format!(
                "how fast `{name}` reads its memory is not known: it is taken for an ordinary \
                 computer"
            ));
        }
    }
    notes
}
