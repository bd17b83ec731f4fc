//! Whether the links of a plan may carry hidden states, and what to say when not.
//!
//! Every token goes once round the ring, so each edge's one-way time is paid per token, that of the
//! edge back to rank 0 included.

use std::fmt::Write;

use daisy_proto::local::{LinkWish, Refusal, RefusalKind};
use daisy_proto::{LinkKind, NodeLink, Path, Sample};

use super::{carrier, figures, kind_name};
use crate::units::{BitRate, Micros};

/// Two neighbours on the ring, and what is known of the link between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edge {
    pub from: String,
    pub to: String,
    /// None: both are one node. Else the record, or why there is none.
    pub link: Option<Result<NodeLink, String>>,
    /// A Thunderbolt cable joins the two machines.
    pub has_cable: bool,
}

impl Edge {
    /// The path that hidden states would take, with its figures.
    fn best<'a>(&'a self, wish: &LinkWish) -> Option<(&'a Path, Sample)> {
        let link = self.link.as_ref()?.as_ref().ok()?;
        allowed(link, wish).find_map(|path| Some((path, figures(path)?)))
    }
}

/// Paths that the user has not ruled out, best first.
pub fn allowed<'a>(link: &'a NodeLink, wish: &LinkWish) -> impl Iterator<Item = &'a Path> {
    let LinkWish { interfaces, exclude_interfaces, .. } = wish.clone();
    link.paths.iter().filter(move |path| {
        let on = |list: &[String]| path.ends.iter().any(|end| list.contains(&end.device.name));
        (interfaces.is_empty() || on(&interfaces)) && !on(&exclude_interfaces)
    })
}

/// What makes a path too slow for hidden states; none: it is good.
pub(super) fn fault(path: &Path, sample: Sample) -> Option<String> {
    if carrier(path) == LinkKind::Loopback {
        // Two nodes on one machine: it may be busy, but there is no better way.
        None
    } else if carrier(path) == LinkKind::WiFi {
        Some(format!("it is Wi-Fi, with a median round trip of {}", Micros(sample.rtt_median_us)))
    } else if sample.rtt_median_us > RTT_US_MAX {
        let (rtt, most) = (Micros(sample.rtt_median_us), Micros(RTT_US_MAX));
        Some(format!("its median round trip is {rtt}, more than {most}"))
    } else {
        None
    }
}

/// Judges every edge of a plan. Well: what is worth a warning. Else: all that is wrong, the measured
/// links, and what helps.
pub fn check(edges: &[Edge], wish: &LinkWish, hidden_bytes: u64) -> Result<Vec<String>, Refusal> {
    let mut faults: Vec<(&Edge, String)> = Vec::new();
    let mut warnings = Vec::new();
    // A ring of two has the same link twice.
    let mut judged: Vec<[&str; 2]> = Vec::new();
    for edge in edges {
        let mut names = [edge.from.as_str(), edge.to.as_str()];
        names.sort_unstable();
        if edge.link.is_none() || judged.contains(&names) {
            continue;
        }
        judged.push(names);
        match edge.best(wish) {
            Some((path, sample)) => match fault(path, sample) {
                Some(fault) => faults.push((edge, fault)),
                None => warnings.extend(warning(edge, path, sample)),
            },
            None => faults.push((edge, no_path(edge))),
        }
    }
    let is_cut = faults.iter().any(|(edge, _)| edge.best(wish).is_none());
    if faults.is_empty() {
        return Ok(warnings);
    }
    if wish.any && !is_cut {
        let cost =
            Micros(u32::try_from(token_cost_us(edges, wish, hidden_bytes)).unwrap_or(u32::MAX));
        let slow = faults.iter().map(|(edge, fault)| format!("{}: {fault}", between(edge)));
        warnings.extend(slow);
        warnings.push(format!("the links cost about {cost} per token"));
        return Ok(warnings);
    }
    let mut message: Vec<String> = faults
        .iter()
        .map(|(edge, fault)| format!("{} cannot carry a model: {fault}", between(edge)))
        .collect();
    message.push(table(faults.iter().map(|(edge, _)| *edge), wish));
    let mut hints: Vec<String> = faults.iter().map(|(edge, _)| remedy(edge, wish)).collect();
    hints.dedup();
    if !is_cut {
        let cost =
            Micros(u32::try_from(token_cost_us(edges, wish, hidden_bytes)).unwrap_or(u32::MAX));
        hints.push(format!("`--link any` uses it all the same, for about {cost} per token"));
    }
    Err(Refusal { message: message.join("\n"), hints, kind: RefusalKind::CannotBeDone })
}

/// What one token waits for the wire: one way over every edge.
pub fn token_cost_us(edges: &[Edge], wish: &LinkWish, hidden_bytes: u64) -> u64 {
    let cost = |(_, sample): (&Path, Sample)| {
        let on_wire = hidden_bytes * 8 * 1_000_000 / sample.bit_per_s.max(1);
        u64::from(sample.rtt_median_us) / 2 + on_wire
    };
    edges.iter().filter_map(|edge| edge.best(wish)).map(cost).sum()
}

fn warning(edge: &Edge, path: &Path, sample: Sample) -> Option<String> {
    let is_slow = sample.bit_per_s < BIT_PER_S_MIN && carrier(path) != LinkKind::Loopback;
    let speed = BitRate(sample.bit_per_s);
    is_slow.then(|| format!("{} has {speed}: long prompts will take their time", between(edge)))
}

fn no_path(edge: &Edge) -> String {
    match &edge.link {
        Some(Err(why)) => format!("it could not be measured: {why}"),
        _ => "no pair of addresses works from both ends".to_owned(),
    }
}

fn between(edge: &Edge) -> String {
    format!("the link between {} and {}", edge.from, edge.to)
}

/// What would make this link fast, as far as the measurements tell.
fn remedy(edge: &Edge, wish: &LinkWish) -> String {
    let (from, to) = (&edge.from, &edge.to);
    let Some(Ok(link)) = &edge.link else {
        return format!("run `daisy doctor` on {from} and on {to}");
    };
    let ruled_out = link.paths.iter().find(|path| {
        let is_good = figures(path).is_some_and(|sample| fault(path, sample).is_none());
        is_good && allowed(link, wish).all(|other| other != *path)
    });
    if let Some(path) = ruled_out {
        return format!(
            "a fast one is there, but --interface or --exclude-interface rules {} out",
            over(path)
        );
    }
    let is_cable = |kind| {
        matches!(kind, LinkKind::ThunderboltBridge { .. } | LinkKind::ThunderboltPort { .. })
    };
    let blocked = link
        .paths
        .iter()
        .find(|path| figures(path).is_none() && path.ends.iter().all(|end| is_cable(end.kind)));
    match blocked {
        Some(path) => {
            let one_way = path.trials.iter().any(Result::is_ok);
            let what = if one_way { "works from one end only" } else { "does not answer" };
            format!(
                "{} {what}: a firewall, or Local Network privacy on a Mac; run `daisy doctor` on {from} and on {to}",
                over(path)
            )
        }
        None if edge.has_cable => format!(
            "a Thunderbolt cable joins {from} and {to}, but no interface uses it: switch `Thunderbolt Bridge` on in System Settings > Network, on both"
        ),
        None => format!("join {from} and {to} by a Thunderbolt cable, or by Ethernet"),
    }
}

/// The measured paths of these edges.
fn table<'a>(edges: impl Iterator<Item = &'a Edge>, wish: &LinkWish) -> String {
    let mut rows = vec![["  link", "over", "kind", "RTT", "worst", "bandwidth"].map(str::to_owned)];
    for edge in edges {
        let Some(Ok(link)) = &edge.link else { continue };
        let best = edge.best(wish).map(|(path, _)| path);
        for path in link.paths.iter().take(ROWS_MAX) {
            let mark = if best == Some(path) { "*" } else { " " };
            let name = format!("{mark} {} - {}", edge.from, edge.to);
            let (kind, over) = (kind_name(carrier(path)), over(path));
            rows.push(match figures(path) {
                Some(sample) => [
                    name,
                    over,
                    kind,
                    Micros(sample.rtt_median_us).to_string(),
                    Micros(sample.rtt_worst_us).to_string(),
                    BitRate(sample.bit_per_s).to_string(),
                ],
                None => [name, over, kind, why_not(path), String::new(), String::new()],
            });
        }
    }
    let width = |column: usize| {
        // A long reason does not widen the columns of figures.
        let counts = |row: &&[String; 6]| column < 3 || !row[5].is_empty();
        let cells = rows.iter().filter(counts).map(|row| &row[column]);
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..6).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = String::from(" ");
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, " {cell:<width$} ");
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text.trim_end().to_owned()
}

fn why_not(path: &Path) -> String {
    let reasons = path.trials.iter().filter_map(|trial| trial.as_ref().err());
    reasons.max_by_key(|reason| reason.len()).cloned().unwrap_or_default()
}

fn over(path: &Path) -> String {
    let [a, b] = &path.ends;
    format!("{} - {}", a.device.name, b.device.name)
}

/// Above this the wire costs more than a rank's layers.
const RTT_US_MAX: u32 = 5000;
const BIT_PER_S_MIN: u64 = 1_000_000_000;
/// Of one link in a refusal.
const ROWS_MAX: usize = 8;
