//! The only printer. Data goes to stdout; progress, hints and errors to stderr.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "printing is this module's purpose")]

use std::io::Write;
use std::net::SocketAddr;

use daisy_proto::control::{LoadProgress, NodeFacts};
use daisy_proto::local::{
    Finding, FromNode, LinkStatus, NodeStatus, PeerState, PeerStatus, PeerSurvey, PeersView,
    RankStatus, Refusal, Survey,
};
use daisy_proto::plan::{PlanReport, PlannedRank, Prediction};
use daisy_proto::{NodeId, NodeName};

use super::Failure;
use super::chat::Stats;
use super::peers::{From, state_word};
use crate::discovery::SERVICE;
use crate::identity::Peer;
use crate::links;
use crate::node::CONTROL_PORT;
use crate::store::{Imported, Progress};
use crate::units::{BitRate, Bytes, Micros};

pub(crate) fn failure(failure: &Failure) {
    match failure {
        Failure::Refused(refusal) => refused(refusal),
        Failure::Other(error) => {
            eprintln!("error: {error}");
            for cause in error.chain().skip(1) {
                // A transparent error repeats its source.
                if cause.to_string() != error.to_string() {
                    eprintln!("  caused by: {cause}");
                }
            }
        }
    }
}

fn refused(refusal: &Refusal) {
    for line in refusal.message.lines() {
        // Each fault is an error of its own; what is set in belongs to the one before.
        let prefix = if line.is_empty() || line.starts_with(' ') { "" } else { "error: " };
        eprintln!("{prefix}{line}");
    }
    for hint in &refusal.hints {
        eprintln!("hint: {hint}");
    }
}

pub(crate) fn id(id: &NodeId) {
    println!("{id}");
}

pub(crate) fn trusted(id: &NodeId, own: &NodeId) {
    eprintln!("this node now works with {id}");
    eprintln!("hint: if not done yet, run `daisy cluster trust {own}` there");
}

pub(crate) fn unpaired(peer: &Peer) {
    let name = peer.name.as_ref().map_or_else(|| peer.id.short(), ToString::to_string);
    eprintln!("{name} ({}) is unpaired: connections and ranks end now", peer.id.short());
}

pub(crate) fn pair_code(code: &str, expires_s: u32) {
    println!("{code}");
    eprintln!("on the other machine, within {expires_s} s: daisy cluster pair {code}");
}

pub(crate) fn paired(id: &NodeId, name: &NodeName) {
    eprintln!("paired with {name} ({})", id.short());
}

/// What is left to do after pairing with a machine that was reached over SSH.
pub(crate) fn paired_over_ssh(there: &str, runs_here: bool, their_port: Option<u16>) {
    if their_port.is_none() {
        eprintln!("hint: no node runs on {there}: `daisy cluster up` there runs one");
    }
    if !runs_here {
        eprintln!("hint: no node runs on this machine: `daisy cluster up` runs one");
    }
    if let Some(port) = their_port {
        let at = if there.contains(':') { format!("[{there}]") } else { there.to_owned() };
        eprintln!(
            "hint: `daisy cluster peers` shows it; where multicast does not get through: \
             `daisy cluster up --peer {at}:{port}`"
        );
    }
}

pub(crate) fn copying(there: &str, bytes: u64) {
    eprintln!("copying this machine's daisy ({}) to {there}", Bytes(bytes));
}

/// A line for the other end of a pipe; whether it went out decides what is kept.
pub(crate) fn word(line: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes())?;
    out.flush()
}

/// Waits for no line end: the answer follows on the same line.
pub(crate) fn question(text: &str) {
    eprint!("{text}");
    let _ = std::io::stderr().flush();
}

pub(crate) fn invitation(token: &str, expires_s: u32) {
    println!("{token}");
    eprintln!(
        "for one machine, within {expires_s} s, while this node runs: daisy cluster join TOKEN"
    );
}

pub(crate) fn hint(text: &str) {
    eprintln!("hint: {text}");
}

pub(crate) fn note(text: &str) {
    eprintln!("{text}");
}

pub(crate) fn down() {
    eprintln!("the node has ended");
}

pub(crate) fn reset(id: &NodeId) {
    eprintln!("this is a new node now, paired with nobody; its id is");
    println!("{id}");
}

pub(crate) fn looking(seconds: u64) {
    eprintln!("no node runs on this machine: looking for others for {seconds} s");
    eprintln!("hint: `daisy cluster up` runs one, and asks the others how they are");
}

pub(crate) fn json(document: &serde_json::Value) {
    println!("{document}");
}

/// A column of `daisy cluster peers`: its head, and a node's cell.
type Column = (&'static str, fn(&PeerStatus) -> String);

const COLUMNS: &[Column] = &[
    ("NAME", |peer| peer.name.as_ref().map_or_else(|| "?".to_owned(), ToString::to_string)),
    ("NODE", |peer| peer.id.short()),
    ("PAIRED", |peer| if peer.paired { "yes" } else { "no" }.to_owned()),
    ("STATE", |peer| state_word(peer.state).to_owned()),
    ("CHIP", |peer| or_dash(peer.facts.as_ref().and_then(|facts| facts.chip.clone()))),
    ("RAM", |peer| or_dash(peer.facts.as_ref().map(|facts| Bytes(facts.memory_bytes)))),
    ("AVAILABLE", |peer| or_dash(peer.facts.as_ref().map(|facts| Bytes(facts.spare_bytes())))),
    ("SWAP", |peer| {
        or_dash(peer.facts.as_ref().and_then(|facts| facts.swap_used_bytes.map(Bytes)))
    }),
    ("LINK", |peer| link(peer)),
    ("RTT", |peer| or_dash(peer.link.as_ref().map(|link| Micros(link.sample.rtt_median_us)))),
    ("BANDWIDTH", |peer| or_dash(peer.link.as_ref().map(|link| BitRate(link.sample.bit_per_s)))),
    ("ADDRESS", |peer| or_dash(peer.addr)),
    ("VERSION", |peer| or_dash(peer.build.as_ref())),
    ("SEEN", |peer| seen(peer)),
];

/// What is not known has a mark, so that columns stay columns.
fn or_dash(value: Option<impl std::fmt::Display>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// This machine's interface and what it leads over; before a measurement the one towards the address.
fn link(peer: &PeerStatus) -> String {
    match &peer.link {
        Some(link) => format!("{} ({})", link.devices[0], links::kind_name(link.kind)),
        None => or_dash(peer.interface.as_ref()),
    }
}

/// How long ago; an unpaired node is there for as long as it is shown.
fn seen(peer: &PeerStatus) -> String {
    match (peer.state, peer.age_ms) {
        (PeerState::Ready, _) => "now".to_owned(),
        (PeerState::Unpaired, Some(age)) => format!("for {}", span(age)),
        (_, Some(age)) => format!("{} ago", span(age)),
        (_, None) => "-".to_owned(),
    }
}

fn span(age_ms: u64) -> String {
    match age_ms / 1000 {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    }
}

pub(crate) fn peers(view: &PeersView, from: From, again: bool) {
    if again {
        clear();
    }
    for fault in &view.faults {
        refused(fault);
    }
    if view.peers.is_empty() {
        nobody(view, from);
        return;
    }
    let head: Vec<String> = COLUMNS.iter().map(|(name, _)| (*name).to_owned()).collect();
    let rows = view.peers.iter().map(|peer| COLUMNS.iter().map(|(_, cell)| cell(peer)).collect());
    table(&std::iter::once(head).chain(rows).collect::<Vec<_>>());
    for peer in &view.peers {
        let name = peer.name.as_ref().map_or_else(|| peer.id.short(), ToString::to_string);
        if let Some(reason) = &peer.reason {
            eprintln!("{name}: {reason}");
        }
        if let Some(remedy) = &peer.remedy {
            eprintln!("hint: {name}: {remedy}");
        }
    }
    if view.hidden > 0 {
        eprintln!(
            "{} more unpaired nodes were not taken in: somebody floods this network",
            view.hidden
        );
    }
}

/// Clears the screen and begins at its top.
fn clear() {
    print!("\u{1b}[2J\u{1b}[H");
}

/// Nobody is a finding, not a failure.
fn nobody(view: &PeersView, from: From) {
    let who = match from {
        From::Node => "this machine's node",
        From::Here => "this command",
    };
    eprintln!("no other node was found");
    if view.interfaces.is_empty() {
        eprintln!("{who} has no interface to look on: is a cable in, or Wi-Fi on?");
    }
    for interface in &view.interfaces {
        eprintln!("{who} asked for {SERVICE} by multicast on {interface}");
    }
    eprintln!("hint: most likely no node runs on the other machine: run `daisy cluster up` there");
    eprintln!(
        "hint: or multicast or UDP {CONTROL_PORT} is blocked (firewall, Local Network privacy, guest \
         Wi-Fi): `daisy cluster up --peer ADDR` does without multicast"
    );
}

fn table(rows: &[Vec<String>]) {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let pad = width(column).unwrap_or(0) - cell.chars().count();
            line.push_str(cell);
            line.push_str(&" ".repeat(pad + 2));
        }
        println!("{}", line.trim_end());
    }
}

pub(crate) fn up(id: &NodeId, listens: SocketAddr) {
    eprintln!("node {} is up, reached at UDP {listens}", id.short());
}

pub(crate) fn import_progress(progress: Progress<'_>) {
    let Progress { tensors_done, tensors, bytes_done, .. } = progress;
    if tensors_done == tensors || tensors_done.is_multiple_of(64) {
        eprintln!("imported {tensors_done}/{tensors} tensors, {}", Bytes(bytes_done));
    }
}

pub(crate) fn imported(imported: &Imported) {
    eprintln!(
        "{} tensors, {}, are now an MLX checkpoint in",
        imported.tensors,
        Bytes(imported.bytes)
    );
    println!("{}", imported.dir.display());
}

/// What the node says while it loads and serves.
pub(crate) fn event(event: &FromNode) {
    match event {
        FromNode::Plan(report) => ranks(report),
        FromNode::Progress { rank, node, progress } => load_progress(rank.0, node, *progress),
        FromNode::Ready { url, model, ranks, context } => {
            for rank in ranks {
                rank_line(rank);
            }
            eprintln!("[cluster] {model} is ready, context {context} tokens");
            println!("[cluster] OpenAI endpoint: {url}/chat/completions");
        }
        FromNode::Degraded { reason } => {
            eprintln!("error: the pipeline failed: {reason}");
            eprintln!("hint: requests get 503 with this reason; stop with Ctrl+C and serve again");
        }
        FromNode::Note(note) => eprintln!("note: {note}"),
        // The others belong to other commands.
        _ => {}
    }
}

/// The plan that is carried out now, in short.
fn ranks(report: &PlanReport) {
    eprintln!("[cluster] {} on {} rank(s)", report.model, report.ranks.len());
    for PlannedRank { planned, margin_bytes, .. } in &report.ranks {
        eprintln!(
            "[rank {}] layers {} ({}) on {} | weights {} | room for {} more",
            planned.rank,
            planned.shard.layers,
            planned.shard.layers.len(),
            planned.node_name,
            Bytes(planned.weight_bytes),
            Bytes(*margin_bytes),
        );
    }
    for note in &report.notes {
        eprintln!("note: {note}");
    }
    if let ([alone], [.., all]) = (&report.ranks[..], &report.others[..]) {
        let node = &alone.planned.node_name;
        let than = times(all.prediction.token_us, report.prediction.token_us);
        eprintln!(
            "note: this model fits `{node}` alone; split {} it would be about {than}",
            all.what
        );
        eprintln!("hint: `{}` splits it anyway", all.args.join(" "));
    }
}

/// A plan with its arithmetic.
pub(crate) fn plan(report: &PlanReport) {
    println!(
        "{} on {} rank(s), {} sequence(s) of up to {} tokens\n",
        report.model,
        report.ranks.len(),
        report.sequences,
        report.context
    );
    let head = [
        "RANK",
        "NODE",
        "LAYERS",
        "WEIGHTS",
        "KV+WORK",
        "NEEDS",
        "CAN SPARE",
        "MARGIN",
        "BOUND BY",
    ];
    let row = |rank: &PlannedRank| {
        let planned = &rank.planned;
        [
            planned.rank.to_string(),
            planned.node_name.clone(),
            planned.shard.layers.to_string(),
            Bytes(planned.weight_bytes).to_string(),
            Bytes(rank.work_bytes).to_string(),
            Bytes(rank.needs_bytes()).to_string(),
            Bytes(rank.spare_bytes).to_string(),
            Bytes(rank.margin_bytes).to_string(),
            rank.bound.clone(),
        ]
    };
    let rows = report.ranks.iter().map(|rank| row(rank).to_vec());
    table(&std::iter::once(head.map(str::to_owned).to_vec()).chain(rows).collect::<Vec<_>>());
    println!();
    println!("{}", predicted(&report.prediction));
    if report.ranks.len() > 1 {
        println!(
            "of each token's time {} are on the wire",
            Micros(narrow(report.prediction.hops_us))
        );
    }
    println!("the longest context that fits this split is {} tokens", report.context_max);
    for other in &report.others {
        println!(
            "\n{}: {}; up to {} tokens of context\n  daisy cluster serve --model {} {}",
            other.what,
            predicted(&other.prediction),
            other.context_max,
            report.model,
            other.args.join(" ")
        );
    }
    for note in &report.notes {
        eprintln!("note: {note}");
    }
}

fn predicted(prediction: &Prediction) -> String {
    let token = Micros(narrow(prediction.token_us));
    match prediction.first_token {
        Some(first) => format!(
            "a token takes about {token}, the first one after a prompt of {} about {}",
            first.prompt_tokens,
            Micros(narrow(first.us))
        ),
        None => format!("a token takes about {token}"),
    }
}

fn narrow(us: u64) -> u32 {
    u32::try_from(us).unwrap_or(u32::MAX)
}

/// How `us` compares with `than`, in words.
#[expect(clippy::cast_precision_loss, reason = "a display of one decimal")]
fn times(us: u64, than: u64) -> String {
    let (us, than) = (us.max(1) as f64, than.max(1) as f64);
    if us < than {
        format!("{:.1}× faster", than / us)
    } else {
        format!("{:.1}× slower", us / than)
    }
}

fn load_progress(rank: u32, node: &str, progress: LoadProgress) {
    let LoadProgress { layers_done, layers_total, resident_bytes } = progress;
    // A line for every eighth of the way is enough to see that it gets on.
    let eighth = (layers_total / 8).max(1);
    if layers_done.is_multiple_of(eighth) || layers_done == layers_total {
        eprintln!(
            "[rank {rank}] materialized {layers_done}/{layers_total} layers | resident {} | {node}",
            Bytes(resident_bytes)
        );
    }
}

fn rank_line(rank: &RankStatus) {
    eprintln!(
        "[rank {}] pid {} | layers {} | resident {} | {} | {}",
        rank.planned.rank,
        rank.pid,
        rank.planned.shard.layers,
        Bytes(rank.resident_bytes),
        rank.device,
        rank.planned.node_name
    );
}

pub(crate) fn detached() {
    eprintln!("[cluster] the model stays with this machine's node; `daisy cluster stop` ends it");
}

pub(crate) fn draining(grace_ms: u64) {
    eprintln!("stopping: running requests get {} s; Ctrl+C again stops at once", grace_ms / 1000);
}

pub(crate) fn stopped() {
    eprintln!("stopped: every rank is gone");
}

pub(crate) fn status(status: &NodeStatus, again: bool) {
    if again {
        clear();
    }
    println!("node     {} ({})", status.name, status.id);
    println!("build    {}", status.build);
    println!("control  UDP port {}", status.control_port);
    println!("serving  {}", status.serving.as_deref().unwrap_or("nothing"));
    for rank in &status.ranks {
        println!(
            "rank {}   layers {} | pid {} | resident {} | {}",
            rank.planned.rank,
            rank.planned.shard.layers,
            rank.pid,
            Bytes(rank.resident_bytes),
            rank.planned.node_name
        );
    }
}

pub(crate) fn doctor(survey: Option<&Survey>, findings: &[Finding]) {
    match survey {
        Some(survey) => {
            machine(&survey.own);
            for peer in &survey.peers {
                peer_machine(survey, peer);
            }
        }
        None => eprintln!(
            "note: no node runs here, so links and peers were not looked at; `daisy cluster up` starts one"
        ),
    }
    for Finding { what, remedy } in findings {
        println!("finding: {what}");
        println!("remedy:  {remedy}");
    }
    if findings.is_empty() {
        println!("nothing is wrong");
    }
}

fn machine(about: &NodeFacts) {
    let facts = &about.facts;
    let known = |text: &Option<String>| text.clone().unwrap_or_else(|| "unknown".to_owned());
    println!("{}: {}, {}", about.name, known(&facts.chip), known(&facts.os));
    let swap =
        facts.swap_used_bytes.map_or_else(String::new, |used| format!(", swap {}", Bytes(used)));
    let limit = facts
        .memory_limit_bytes
        .map_or_else(String::new, |most| format!(", limit {}", Bytes(most)));
    let speed = facts
        .memory_bytes_per_s
        .map_or_else(String::new, |rate| format!(" at {} GB/s", rate / 1_000_000_000));
    println!(
        "  memory {}{speed}, available {}{swap}{limit}",
        Bytes(facts.memory_bytes),
        Bytes(facts.available_bytes)
    );
    for interface in &about.interfaces {
        let addrs: Vec<String> = interface.addrs.iter().map(|addr| addr.ip.to_string()).collect();
        let kind = links::kind_name(interface.kind);
        println!(
            "  {} ({kind}, MTU {}): {}",
            interface.device.name,
            interface.mtu,
            addrs.join(" ")
        );
    }
}

fn peer_machine(survey: &Survey, peer: &PeerSurvey) {
    if let Some(facts) = &peer.facts {
        machine(facts);
    }
    if let Some(lost) = &peer.lost {
        println!("  not connected: {lost}");
    }
    if let Some(link) = peer.link.as_ref().and_then(|link| links::status(link, survey.id)) {
        let LinkStatus { devices: [own, other], kind, sample } = link;
        println!(
            "  link {own} - {other} ({}), RTT {}, worst {}, {}",
            links::kind_name(kind),
            Micros(sample.rtt_median_us),
            Micros(sample.rtt_worst_us),
            BitRate(sample.bit_per_s)
        );
    }
}

/// A node's lines, as they are.
pub(crate) fn log(text: &str) {
    print!("{text}");
}

pub(crate) fn chat_begins(models: &[String]) {
    eprintln!("talking to {}; /help lists what else there is", models.join(", "));
}

pub(crate) fn chat_help() {
    eprintln!("/stats  how fast the answers came");
    eprintln!("/reset  forget the conversation");
    eprintln!("/quit   leave (or Ctrl+D); Ctrl+C ends an answer");
}

pub(crate) fn chat_reset() {
    eprintln!("the conversation starts anew");
}

/// Text as it comes; seen at once, though no line ends.
pub(crate) fn chat_piece(text: &str) {
    print!("{text}");
    // A closed pipe shows at the next line.
    let _ = std::io::stdout().flush();
}

/// What the model thinks is no part of its answer, so it stays out of what may be piped on.
pub(crate) fn chat_thought(text: &str) {
    eprint!("{text}");
}

pub(crate) fn chat_thought_ends() {
    eprintln!("\n");
}

pub(crate) fn chat_stopped() {
    eprintln!(" [stopped]");
}

pub(crate) fn chat_answer_ends() {
    println!();
}

pub(crate) fn chat_stats(stats: &Stats) {
    let Stats { answers, last, prompt_tokens, completion_tokens } = stats;
    if *answers == 0 {
        eprintln!("no answer yet");
        return;
    }
    eprintln!(
        "last answer: {} prompt and {} new tokens | TTFT {:.2} s | {:.1} tok/s",
        last.counted.prompt_tokens,
        last.counted.completion_tokens,
        last.ttft.as_secs_f64(),
        last.tokens_per_second()
    );
    eprintln!("all {answers} answers: {prompt_tokens} prompt and {completion_tokens} new tokens");
}
