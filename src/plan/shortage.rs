//! What to say when no split fits: the sums of the one that lacks least, and what would help.
//! Every hint is computed from the same figures.

use daisy_proto::local::{Refusal, RefusalKind};

use super::node::{Bound, Node};
use super::{Demand, PlanError, Ranked};
use crate::units::{Bytes, Tenths};

/// A split that does not fit, in the order of ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortage {
    pub ranks: Vec<Ranked>,
    pub nodes: Vec<Node>,
    /// Of the whole model.
    pub weight_bytes: u64,
    pub millibits_per_weight: u64,
    pub demand: Demand,
    /// The longest context for which this split would fit; 0: the weights alone are too much.
    pub context_max: u32,
}

impl PlanError {
    /// What the user is told. Nothing was loaded or changed.
    pub fn refusal(&self, model: &str) -> Refusal {
        match self {
            Self::Short(shortage) => refusal(model, shortage),
            Self::NoRing { .. } => Refusal {
                message: self.to_string(),
                hints: vec![
                    "`daisy cluster peers` shows the links; `--link any` uses slow ones".to_owned(),
                ],
                kind: RefusalKind::CannotBeDone,
            },
            Self::Context { most, .. } => Refusal {
                message: self.to_string(),
                hints: vec![format!("--context {most} is the most")],
                kind: RefusalKind::Usage,
            },
            _ => Refusal { message: self.to_string(), hints: Vec::new(), kind: RefusalKind::Usage },
        }
    }
}

/// The table of the split that lacks least, and what would make it fit.
pub(super) fn refusal(model: &str, shortage: &Shortage) -> Refusal {
    let message = format!(
        "{model} does not fit the memory that the cluster can spare now\n\n{}",
        table(shortage)
    );
    Refusal { message, hints: hints(shortage), kind: RefusalKind::CannotBeDone }
}

/// In GiB with one decimal. What is rounded is chosen so that the columns add up as they stand.
fn table(shortage: &Shortage) -> String {
    let head = ["rank", "node", "layers", "weights", "kv+work", "needs", "can spare", "bound by"];
    let mut rows = vec![head.map(str::to_owned)];
    let mut short = vec![String::new()];
    for ranked in &shortage.ranks {
        let fit = &ranked.fit;
        let (needs, weights) = (Tenths::of(fit.needs_bytes()), Tenths::of(fit.weight_bytes));
        let spare = fit.spare.bound.tenths();
        rows.push([
            ranked.rank.to_string(),
            shortage.nodes[ranked.node].name.clone(),
            ranked.shard.layers.to_string(),
            weights.to_string(),
            (needs - weights).to_string(),
            needs.to_string(),
            spare.to_string(),
            fit.bound().to_string(),
        ]);
        let lack = match fit.bound() {
            ceiling @ Bound::Ceiling { .. } => weights - ceiling.tenths(),
            _ => needs - spare,
        };
        short.push(match (fit.short_bytes(), lack) {
            (0, _) => String::new(),
            (_, Tenths::ZERO) => "  ← short by less than 0.1".to_owned(),
            (_, lack) => format!("  ← short by {lack}"),
        });
    }
    let widths: Vec<usize> = (0..head.len())
        .map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
        .collect();
    let lines = rows.iter().zip(short).map(|(row, short)| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        format!("  {}{short}", cells.collect::<Vec<_>>().join("  ").trim_end())
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn hints(shortage: &Shortage) -> Vec<String> {
    let mut hints: Vec<String> = shortage
        .ranks
        .iter()
        .filter(|ranked| ranked.fit.short_bytes() > 0)
        .filter_map(|ranked| on_node(&shortage.nodes[ranked.node], ranked))
        .collect();
    hints.extend(smaller_weights(shortage));
    hints.extend(further_nodes(shortage));
    if shortage.context_max > 0 {
        hints.push(format!("`--context {}` would fit", shortage.context_max));
    }
    hints
}

/// What the user could do on the node of a rank that does not fit.
fn on_node(node: &Node, ranked: &Ranked) -> Option<String> {
    let Node { name, .. } = node;
    let fit = &ranked.fit;
    match fit.bound() {
        Bound::Free { .. } => {
            let swap = node.swap_used_bytes.filter(|used| *used >= SWAP_MUCH);
            let lack = Bytes(fit.short_bytes());
            Some(match swap {
                Some(used) => format!(
                    "quit apps on `{name}`, or restart it: it has {} in swap, which macOS does \
                     not shrink; {lack} more would do",
                    Bytes(used)
                ),
                None => format!("quit apps on `{name}`: {lack} more would do"),
            })
        }
        Bound::Limit { limit, .. } => {
            let enough = limit.saturating_add(fit.short_bytes());
            let there_is = enough <= node.available_bytes;
            there_is.then(|| format!("`--memory-limit` of {} on `{name}` would do", Bytes(enough)))
        }
        Bound::Gpu { limit, .. } => {
            // Rounded up, so that it is enough.
            let enough = limit.saturating_add(fit.short_bytes()).div_ceil(1 << 20);
            let free = node.available_bytes.saturating_sub(node.reserve_bytes);
            (fit.needs_bytes() <= free).then(|| {
                format!("`sudo sysctl iogpu.wired_limit_mb={enough}` on `{name}` would do")
            })
        }
        // Beyond it weights make the GPU collapse, whatever the system allows.
        Bound::Ceiling { .. } => None,
    }
}

/// What weights could take on the nodes of the split, all together.
fn room(shortage: &Shortage) -> u64 {
    let room = |ranked: &Ranked| ranked.fit.spare.for_weights(ranked.fit.work_bytes);
    shortage.ranks.iter().map(room).fold(0, u64::saturating_add)
}

/// How much more memory there must be, if all of these nodes are too little together.
fn further_nodes(shortage: &Shortage) -> Option<String> {
    let lack = shortage.weight_bytes.checked_sub(room(shortage)).filter(|lack| *lack > 0)?;
    Some(format!("further nodes would do that can spare {} together", Bytes(lack)))
}

/// How small the weights must be on these nodes.
fn smaller_weights(shortage: &Shortage) -> Option<String> {
    let room = u128::from(room(shortage));
    let millibits =
        u128::from(shortage.millibits_per_weight) * room / u128::from(shortage.weight_bytes.max(1));
    // Layers are whole: a little is lost at each boundary.
    let tenths = millibits / 100;
    let would_help =
        tenths >= BITS_LEAST_TENTHS && millibits < u128::from(shortage.millibits_per_weight);
    would_help.then(|| {
        let now = shortage.millibits_per_weight / 100;
        format!(
            "a quantisation of about {}.{} bits would fit; this one has {}.{}",
            tenths / 10,
            tenths % 10,
            now / 10,
            now % 10
        )
    })
}

/// From here on swap tells of a machine that had too much to do.
const SWAP_MUCH: u64 = 1 << 30;
/// Below this many bits, in tenths, models are of little use.
const BITS_LEAST_TENTHS: u128 = 20;
