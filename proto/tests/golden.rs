//! The wire format, byte for byte. Whoever changes these bytes changes `PROTOCOL_VERSION`.
//!
//! golden.txt has one message of each kind a line, as a whole frame: header length, payload length,
//! header, payload; pairing has no frames. The hello of the control stream is no frame, and never changes at all.

use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::path::PathBuf;

use daisy_proto::control::{
    Event, LoadProgress, Message, NodeFacts, RankKey, Request, Response, Way,
};
use daisy_proto::files::{Answer, Ask, FileEntry, Which};
use daisy_proto::frame;
use daisy_proto::hello::Hello;
use daisy_proto::link::EdgeMessage;
use daisy_proto::local::{
    Admit, Budget, Finding, FinishReason, FromNode, FromRank, Headroom, LinkStatus, LinkWish,
    NodeStatus, Nodes, Pairing, PeerState, PeerStatus, PeerSurvey, PeersView, PlannedShard,
    RankStart, RankStatus, Refusal, RefusalKind, Serve, Survey, Timings, ToNode, ToRank, Unreached,
};
use daisy_proto::pair::{PairMessage, Secret};
use daisy_proto::plan::{FirstToken, OtherPlan, PlanReport, PlannedRank, Prediction};
use daisy_proto::{
    Address, Cable, CloseReason, Device, Dtype, Facts, Interface, LayerRange, LinkKind, Logprobs,
    NodeId, NodeLink, NodeName, PROTOCOL_VERSION, Path, PathEnd, PipelineId, Power, Pressure, Rank,
    Row, Sample, Sampling, SeqId, Shard, Step, Trial,
};
use serde::Serialize;

/// Hash of golden.txt by protocol version. A change of the format adds a line; a line for a version
/// that was released never changes.
const HASHES: &[(u32, u64)] = &[(1, 0x2c4d_02f0_a8dc_3681)];
const GOLDEN: &str = include_str!("golden.txt");

#[test]
fn the_hello_of_the_control_stream_never_changes() {
    let hello = Hello::new(1, "0.1.0+4be1f2c").expect("a good build");
    assert_eq!(hex(&hello.encode()), "64616973 7963746c 01000000 0d302e31 2e302b34 62653166 3263");
}

#[test]
fn the_wire_format_is_byte_for_byte_the_golden_one() {
    let mut now = String::new();
    for (name, bytes) in
        [edge(), control(), to_rank(), from_rank(), to_node(), from_node(), files(), pair()]
            .concat()
    {
        writeln!(now, "{name:<16} {}", hex(&bytes)).expect("text grows");
    }
    assert!(now == GOLDEN, "golden.txt is not what is written now, which is:\n{now}");
}

#[test]
fn the_format_is_bound_to_the_version() {
    // FNV-1a, 64 bits.
    let hash = GOLDEN.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let recorded = HASHES.iter().find(|(version, _)| *version == PROTOCOL_VERSION);
    assert_eq!(
        recorded,
        Some(&(PROTOCOL_VERSION, hash)),
        "the wire format changed: raise PROTOCOL_VERSION and ALPN_DATA, and record {hash:#018x}"
    );
}

#[test]
fn the_data_protocol_is_named_after_the_version() {
    assert_eq!(daisy_proto::ALPN_DATA, format!("daisy-data/{PROTOCOL_VERSION}").as_bytes());
    assert_eq!(daisy_proto::ALPN_CONTROL, b"daisy-control/1");
    assert_eq!(daisy_proto::ALPN_PAIR, b"daisy-pair/1");
}

type Golden = (&'static str, Vec<u8>);

fn edge() -> Vec<Golden> {
    let pipeline = PipelineId(0x0102_0304);
    let (from, to) = (Rank(0), Rank(1));
    let hello =
        EdgeMessage::Hello { protocol_version: 1, pipeline, from, to, credit: 16, steps: 300 };
    let step = Step {
        pipeline,
        number: 300,
        rows: vec![
            Row { seq: SeqId(1), first: 0, count: 1, logits: false },
            Row { seq: SeqId(200), first: 4095, count: 1, logits: true },
        ],
        release: vec![SeqId(7)],
        dtype: Dtype::Bf16,
        tokens: 2,
        width: 2,
    };
    vec![
        ("edge hello", bytes(&hello, &[])),
        ("edge step", bytes(&EdgeMessage::Step(step), &[0x80, 0x3f, 0, 0xc0, 1, 2, 3, 4])),
        ("edge heartbeat", bytes(&EdgeMessage::Heartbeat { steps: 129 }, &[])),
        ("edge goodbye", bytes(&EdgeMessage::Goodbye { reason: CloseReason::BadFrame }, &[])),
    ]
}

fn control() -> Vec<Golden> {
    let pipeline = PipelineId(1);
    let rank = Rank(1);
    let connect = Request::Connect { pipeline, previous: key(0xaa), next: key(0xbb), ways: ways() };
    let probe = Request::Probe { interfaces: node_facts().interfaces, probe_port: 51_739 };
    let link_to =
        Request::LinkTo { node: NodeId([0xa7; 32]), about: Box::new(node_facts()), insists: true };
    let [own, other] = node_link().paths[0].ends.clone();
    let probed = vec![Trial { own, other, outcome: Err("no answer".to_owned()) }];
    let staged = Response::Staged { pid: 4711, key: key(0xcc), port: 40_000 };
    let loading = Event::Loading { pipeline, rank, progress: progress() };
    let ready = Event::Ready {
        pipeline,
        rank,
        resident_bytes: 1 << 30,
        device: "cpu".to_owned(),
        dtype: Dtype::F32,
    };
    let [_, way] = ways().try_into().expect("two");
    let relay = Request::Relay { pipeline, to: way.clone() };
    let moved = Event::Moved { pipeline, rank, way, cause: "silent".to_owned() };
    let exited =
        Event::Exited { pipeline, rank, reason: "killed".to_owned(), blame: Some(Rank(0)) };
    let request = |request| bytes(&Message::Request { call: 5, request }, &[]);
    let response = |response| bytes(&Message::Response { call: 5, response }, &[]);
    let event = |event| bytes(&Message::Event(event), &[]);
    vec![
        ("ask facts", request(Request::Facts)),
        ("ask checkpoint", request(Request::Checkpoint { path: PathBuf::from("/m") })),
        ("ask probe", request(probe)),
        ("ask agree", request(Request::Agree(node_link()))),
        ("ask link", request(link_to)),
        ("ask stage", request(Request::Stage(rank_start()))),
        ("ask connect", request(connect)),
        ("ask reroute", request(Request::Reroute { pipeline, ways: ways() })),
        ("ask resume", request(Request::Resume { pipeline })),
        ("ask relay", request(relay)),
        ("ask stop", request(Request::Stop { pipeline })),
        ("ask logs", request(Request::Logs { lines: 200 })),
        ("ask attend", request(Request::Attend(Box::new(ToNode::Drain { grace_ms: 5000 })))),
        ("facts", response(Response::Facts(Box::new(node_facts())))),
        ("checkpoint, read", response(Response::Checkpoint(Ok([0xdd; 32])))),
        ("checkpoint, not", response(Response::Checkpoint(Err("no config.json".to_owned())))),
        ("probed", response(Response::Probed(probed))),
        ("link", response(Response::Link(node_link()))),
        ("staged", response(staged)),
        ("relaying", response(Response::Relaying { port: 40_001 })),
        ("done", response(Response::Done)),
        ("peer's log", response(Response::Logs("a line\n".to_owned()))),
        ("refused", response(Response::Refused(refusal(RefusalKind::CannotBeDone)))),
        ("event loading", event(loading)),
        ("event ready", event(ready)),
        ("event moved", event(moved)),
        ("event exited", event(exited)),
        ("event memory", event(Event::Memory { pipeline, rank, short: Some("full".to_owned()) })),
        ("event said", event(Event::Said(Some(Box::new(FromNode::Stopped))))),
        ("event silent", event(Event::Said(None))),
    ]
}

fn to_rank() -> Vec<Golden> {
    let admit = Admit {
        seq: SeqId(9),
        prompt: vec![1, 127, 128, 49_151],
        max_tokens: 64,
        eos: vec![2],
        sampling: Sampling {
            temperature: 0.5,
            top_p: 1.0,
            top_k: 40,
            min_p: 0.25,
            repetition_penalty: 1.5,
            presence_penalty: 2.0,
            frequency_penalty: -2.0,
            seed: 11,
        },
        bias: vec![(127, -100.0)],
        logprobs: Some(5),
    };
    let connect = ToRank::Connect { previous: key(0xaa), next: key(0xbb), ways: ways() };
    vec![
        ("rank start", bytes(&ToRank::Start(rank_start()), &[])),
        ("rank connect", bytes(&connect, &[])),
        ("rank reroute", bytes(&ToRank::Reroute { ways: ways() }, &[])),
        ("rank admit", bytes(&ToRank::Admit(admit), &[])),
        ("rank cancel", bytes(&ToRank::Cancel { seq: SeqId(9) }, &[])),
        ("rank shrink", bytes(&ToRank::Shrink, &[])),
        ("rank unload", bytes(&ToRank::Unload, &[])),
    ]
}

fn from_rank() -> Vec<Golden> {
    let seq = SeqId(9);
    let ready =
        FromRank::Ready { resident_bytes: 1 << 30, device: "cpu".to_owned(), dtype: Dtype::F16 };
    let timings = Timings { queue_us: 10, prefill_us: 2000, decode_us: 300_000 };
    let finished = |reason| bytes(&FromRank::Finished { seq, reason, timings }, &[]);
    let [way, _] = ways().try_into().expect("two");
    let moved = FromRank::Moved { way, cause: "a better link".to_owned() };
    let failed = FromRank::Failed { message: "edge lost".to_owned(), blame: None };
    let token = |logprobs| FromRank::Token { seq, index: 0, token: 28, logprobs };
    let logprobs = Logprobs { drawn: -1.0, top: vec![(300, -0.5)] };
    vec![
        ("listening", bytes(&FromRank::Listening { key: key(0xcc), port: 40_000 }, &[])),
        ("loading", bytes(&FromRank::Loading(progress()), &[])),
        ("ready", bytes(&ready, &[])),
        ("moved", bytes(&moved, &[])),
        ("token", bytes(&token(None), &[])),
        ("token, logprobs", bytes(&token(Some(logprobs)), &[])),
        ("finished, stop", finished(FinishReason::Stop)),
        ("finished, length", finished(FinishReason::Length)),
        ("finished, cancel", finished(FinishReason::Cancelled)),
        ("failed", bytes(&failed, &[])),
    ]
}

fn to_node() -> Vec<Golden> {
    let serve = Serve {
        model: PathBuf::from("/m"),
        driver: Some("studio".to_owned()),
        host: Some("127.0.0.1".to_owned()),
        port: 8100,
        peers: addrs(),
        layers: vec![15, 15],
        nodes: Nodes::Named(vec!["mini".to_owned()]),
        exclude: vec!["air".to_owned()],
        links: LinkWish {
            any: true,
            interfaces: vec!["bridge0".to_owned()],
            exclude_interfaces: vec!["en0".to_owned()],
        },
        context: None,
        sequences: 4,
        headroom: Headroom::ByName(vec![("mini".to_owned(), 1 << 31)]),
        chunk: 512,
        dtype: None,
    };
    let enter = Pairing::Enter { code: "417-209".to_owned(), peers: addrs() };
    let join = Pairing::Join { token: "daisy-abc".to_owned(), peers: Vec::new() };
    vec![
        ("node serve", bytes(&ToNode::Serve(Box::new(serve.clone())), &[])),
        ("node plan", bytes(&ToNode::Plan(Box::new(serve)), &[])),
        ("node detach", bytes(&ToNode::Detach, &[])),
        ("node stop", bytes(&ToNode::Stop { grace_ms: 5000 }, &[])),
        ("node drain", bytes(&ToNode::Drain { grace_ms: 5000 }, &[])),
        ("node status", bytes(&ToNode::Status, &[])),
        ("node survey", bytes(&ToNode::Survey, &[])),
        ("node logs", bytes(&ToNode::Logs { node: "mini".to_owned(), lines: 200 }, &[])),
        ("node peers", bytes(&ToNode::Peers, &[])),
        ("node pair", bytes(&ToNode::Pair(Pairing::Show), &[])),
        ("node pair, code", bytes(&ToNode::Pair(enter), &[])),
        ("node pair, token", bytes(&ToNode::Pair(join), &[])),
        ("node invite", bytes(&ToNode::Invite { ttl_s: 600 }, &[])),
        ("node down", bytes(&ToNode::Down, &[])),
    ]
}

fn files() -> Vec<Golden> {
    let which = Which::Digest([0xdd; 32]);
    let commit = Which::Commit { repo: "org/model".to_owned(), commit: "0a".repeat(20) };
    let name = "model.safetensors".to_owned();
    let get = Ask::Get { which, name: name.clone(), from: 300, sealed: true };
    vec![
        ("ask list", bytes(&Ask::List(commit), &[])),
        ("ask get", bytes(&get, &[])),
        ("files", bytes(&Answer::Files(vec![FileEntry { name, bytes: 1 << 30 }]), &[])),
        ("chunk", bytes(&Answer::Chunk, &[1, 2, 3])),
        ("end", bytes(&Answer::End { sha256: Some([0xee; 32]) }, &[])),
        ("no file", bytes(&Answer::Refused("there is no such file here".to_owned()), &[])),
    ]
}

fn pair() -> Vec<Golden> {
    let open = |secret| PairMessage::Open { secret, share: [0xaa; 33], name: name() };
    let reply = PairMessage::Reply { share: [0xbb; 33], name: name(), proof: [0xcc; 32] };
    vec![
        ("pair, code", open(Secret::Code).encode().to_vec()),
        ("pair, invitation", open(Secret::Invitation([0xdd; 8])).encode().to_vec()),
        ("pair reply", reply.encode().to_vec()),
        ("pair proof", PairMessage::Proof([0xee; 32]).encode().to_vec()),
        ("pair done", PairMessage::Done.encode().to_vec()),
    ]
}

fn plan_report(planned: PlannedShard) -> PlanReport {
    let first_token = Some(FirstToken { prompt_tokens: 1024, us: 900_000 });
    let prediction = Prediction { token_us: 40_000, hops_us: 600, first_token };
    let rank = PlannedRank {
        planned,
        work_bytes: 1 << 20,
        spare_bytes: 1 << 34,
        margin_bytes: 1 << 33,
        bound: "free 18.0 − 2.0 reserve".to_owned(),
    };
    PlanReport {
        model: "tiny".to_owned(),
        ranks: vec![rank],
        context: 8192,
        context_max: 16_384,
        sequences: 4,
        prediction,
        others: vec![OtherPlan {
            what: "over all 2 nodes".to_owned(),
            args: vec!["--nodes".to_owned(), "all".to_owned()],
            context_max: 32_768,
            prediction: Prediction { first_token: None, ..prediction },
        }],
        notes: vec!["mind".to_owned()],
    }
}

fn from_node() -> Vec<Golden> {
    let (rank, model) = (Rank(1), "tiny".to_owned());
    let planned = PlannedShard {
        rank,
        node: NodeId([0xa7; 32]),
        node_name: "mini".to_owned(),
        shard: Shard::of(rank, LayerRange::new(15, 30)),
        weight_bytes: 1 << 29,
    };
    let ranks = vec![RankStatus {
        planned: planned.clone(),
        pid: 4711,
        resident_bytes: 1 << 30,
        device: "cpu".to_owned(),
    }];
    let ready = FromNode::Ready {
        url: "http://127.0.0.1:8100".to_owned(),
        model: model.clone(),
        ranks: ranks.clone(),
        context: 8192,
    };
    let status = NodeStatus {
        id: NodeId([0xa7; 32]),
        name: name(),
        build: "0.1.0".to_owned(),
        control_port: 51738,
        serving: Some(model),
        ranks,
    };
    let peers = vec![PeerSurvey {
        id: NodeId([0xa8; 32]),
        facts: None,
        link: Some(node_link()),
        lost: Some("closed".to_owned()),
    }];
    let unreached = addrs().into_iter().map(|addr| Unreached { addr, fault: "no".to_owned() });
    let unreached = unreached.collect();
    let findings = vec![Finding { what: "a ring".to_owned(), remedy: "pull one".to_owned() }];
    let survey = Survey { id: NodeId([0xa7; 32]), own: node_facts(), peers, unreached, findings };
    let progress = FromNode::Progress { rank, node: "mini".to_owned(), progress: progress() };
    let plan = FromNode::Plan(Box::new(plan_report(planned)));
    let peer = PeerStatus {
        id: NodeId([0xa7; 32]),
        name: Some(name()),
        build: Some("daisy 0.1.0".to_owned()),
        paired: true,
        state: PeerState::Gone,
        addr: Some(addrs()[1]),
        interface: Some("en5".to_owned()),
        age_ms: Some(4000),
        reason: Some("nothing was heard for 4 s".to_owned()),
        remedy: None,
        facts: Some(node_facts().facts),
        link: Some(LinkStatus {
            devices: ["bridge0", "en0"].map(str::to_owned),
            kind: LinkKind::WiFi,
            sample: sample(),
        }),
    };
    let peers = PeersView {
        peers: vec![peer],
        interfaces: vec!["en5 (169.254.1.1)".to_owned()],
        hidden: 3,
        faults: vec![refusal(RefusalKind::CannotBeDone)],
    };
    let invitation = FromNode::Invitation { token: "daisy-abc".to_owned(), expires_s: 600 };
    vec![
        ("plan", bytes(&plan, &[])),
        ("progress", bytes(&progress, &[])),
        ("serving", bytes(&ready, &[])),
        ("degraded", bytes(&FromNode::Degraded { reason: "rank 1 died".to_owned() }, &[])),
        ("stopped", bytes(&FromNode::Stopped, &[])),
        ("refused, usage", bytes(&FromNode::Refused(refusal(RefusalKind::Usage)), &[])),
        ("refused, reach", bytes(&FromNode::Refused(refusal(RefusalKind::NotReachable)), &[])),
        ("status", bytes(&FromNode::Status(status), &[])),
        ("survey", bytes(&FromNode::Survey(Box::new(survey)), &[])),
        ("note", bytes(&FromNode::Note("slow".to_owned()), &[])),
        ("log", bytes(&FromNode::Logs("a line\n".to_owned()), &[])),
        ("peers", bytes(&FromNode::Peers(peers), &[])),
        (
            "pair code",
            bytes(&FromNode::PairCode { code: "417-209".to_owned(), expires_s: 120 }, &[]),
        ),
        ("paired", bytes(&FromNode::Paired { id: NodeId([0xa7; 32]), name: name() }, &[])),
        ("invitation", bytes(&invitation, &[])),
        ("stopping", bytes(&FromNode::Stopping, &[])),
    ]
}

/// An IPv4 address, and a link-local one whose scope must stay.
fn addrs() -> Vec<SocketAddr> {
    let link_local = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0x42);
    vec![
        (Ipv4Addr::new(169, 254, 1, 2), 51738).into(),
        SocketAddrV6::new(link_local, 51738, 0, 12).into(),
    ]
}

fn ways() -> Vec<Way> {
    let devices = [None, Some(Device { name: "bridge0".to_owned(), index: 12 })];
    addrs().into_iter().zip(devices).map(|(addr, device)| Way { addr, device }).collect()
}

fn node_facts() -> NodeFacts {
    let facts = Facts {
        memory_bytes: 24 << 30,
        available_bytes: 20 << 30,
        memory_limit_bytes: Some(12 << 30),
        ceiling_percent: Some(75),
        gpu_limit_bytes: Some(18 << 30),
        swap_used_bytes: Some(0),
        pressure: Some(Pressure::Normal),
        chip: Some("Apple M4".to_owned()),
        memory_bytes_per_s: Some(120_000_000_000),
        os: None,
        power: Some(Power { on_battery: true, charge_percent: Some(38), low_power: false }),
    };
    let [end, _] = node_link().paths[0].ends.clone();
    let interface = Interface {
        device: end.device,
        kind: end.kind,
        mtu: 1500,
        addrs: vec![Address { ip: end.ip, prefix: 16 }],
    };
    let cable = Cable {
        receptacle: 2,
        own_domain: "A".to_owned(),
        peer_domain: "B".to_owned(),
        gbit_per_s: Some(40),
    };
    NodeFacts {
        name: name(),
        facts,
        interfaces: vec![interface],
        cables: vec![cable],
        control_port: 51_738,
        probe_port: 51_739,
    }
}

fn node_link() -> NodeLink {
    let end = |name: &str, kind, last| PathEnd {
        device: Device { name: name.to_owned(), index: 12 },
        kind,
        ip: Ipv4Addr::new(169, 254, 1, last).into(),
    };
    let ends = [
        end("bridge0", LinkKind::ThunderboltBridge { gbit_per_s: Some(40) }, 1),
        end("en0", LinkKind::WiFi, 2),
    ];
    let path = Path { ends, trials: [Ok(sample()), Err("no answer".to_owned())] };
    NodeLink { nodes: [NodeId([0xa7; 32]), NodeId([0xa8; 32])], round: 3, paths: vec![path] }
}

fn sample() -> Sample {
    Sample { rtt_median_us: 600, rtt_worst_us: 900, probes: 51, bit_per_s: 10_000_000_000 }
}

fn name() -> NodeName {
    NodeName::new("mini").expect("a name")
}

fn key(byte: u8) -> RankKey {
    RankKey([byte; 32])
}

fn progress() -> LoadProgress {
    LoadProgress { layers_done: 3, layers_total: 15, resident_bytes: 1 << 30 }
}

fn rank_start() -> RankStart {
    RankStart {
        pipeline: PipelineId(1),
        rank: Rank(1),
        world: 2,
        shard: Shard::of(Rank(1), LayerRange::new(15, 30)),
        checkpoint: PathBuf::from("/m"),
        dtype: Some(Dtype::F32),
        bind: (Ipv4Addr::LOCALHOST, 0).into(),
        chunk: 512,
        budget: Budget { sequences: 4, tokens: 32_768 },
        needs_bytes: 1 << 33,
    }
}

fn refusal(kind: RefusalKind) -> Refusal {
    Refusal { message: "too big".to_owned(), hints: vec!["add a node".to_owned()], kind }
}

fn bytes(message: &impl Serialize, payload: &[u8]) -> Vec<u8> {
    let mut bytes = frame::encode(message, payload.len()).expect("fits").to_vec();
    bytes.extend_from_slice(payload);
    bytes
}

/// In groups of four bytes, so that the two lengths stand apart.
fn hex(bytes: &[u8]) -> String {
    let groups = bytes
        .chunks(4)
        .map(|group| group.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}")));
    groups.collect::<Vec<_>>().join(" ")
}
