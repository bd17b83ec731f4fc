//! Strategies for every wire type, and small makers that the tests share.
#![allow(dead_code, reason = "each test binary uses a part of this")]

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::path::PathBuf;

use daisy_proto::control::{
    Event, LoadProgress, Message, NodeFacts, RankKey, Request, Response, Way,
};
use daisy_proto::frame::{Decoder, Frame, Limits};
use daisy_proto::link::EdgeMessage;
use daisy_proto::local::{
    Admit, Budget, Finding, FinishReason, FromNode, FromRank, Headroom, LinkStatus, LinkWish,
    NodeStatus, Nodes, Pairing, PeerState, PeerStatus, PeerSurvey, PeersView, PlannedShard,
    RankStart, RankStatus, Refusal, RefusalKind, Serve, Survey, Timings, ToNode, ToRank, Unreached,
};
use daisy_proto::plan::{FirstToken, OtherPlan, PlanReport, PlannedRank, Prediction};
use daisy_proto::{
    Address, Cable, CloseReason, Device, Dtype, Facts, Interface, LayerRange, LinkKind, Logprobs,
    NodeId, NodeLink, NodeName, Path, PathEnd, PipelineId, Power, Pressure, Rank, Row, Sample,
    Sampling, SeqId, Shard, Step, Trial,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

/// A step of one row, and the payload that fits it.
pub fn step(pipeline: PipelineId, number: u64, count: u32) -> (Step, bytes::Bytes) {
    let step = Step {
        pipeline,
        number,
        rows: vec![Row { seq: SeqId(1), first: 0, count, logits: true }],
        release: vec![],
        dtype: Dtype::Bf16,
        tokens: count,
        width: 4,
    };
    (step, bytes::Bytes::from(vec![0x3f; count as usize * 4 * 2]))
}

/// The one frame in `bytes`.
pub fn one_frame(limits: Limits, bytes: impl Into<bytes::Bytes>) -> Frame {
    let mut decoder = Decoder::new(limits);
    decoder.push(bytes.into());
    let frame = decoder.next().expect("a good frame").expect("a whole frame");
    decoder.finish().expect("nothing after it");
    frame
}

pub fn edge_message() -> impl Strategy<Value = EdgeMessage> {
    prop_oneof![
        (any::<u32>(), pipeline(), rank(), rank(), any::<u32>(), any::<u64>()).prop_map(
            |(protocol_version, pipeline, from, to, credit, steps)| EdgeMessage::Hello {
                protocol_version,
                pipeline,
                from,
                to,
                credit,
                steps
            }
        ),
        any_step().prop_map(EdgeMessage::Step),
        any::<u64>().prop_map(|steps| EdgeMessage::Heartbeat { steps }),
        any::<u32>()
            .prop_map(|code| EdgeMessage::Goodbye { reason: CloseReason::from_code(code % 40) }),
    ]
}

pub fn control_message() -> impl Strategy<Value = Message> {
    prop_oneof![
        (any::<u64>(), request()).prop_map(|(call, request)| Message::Request { call, request }),
        (any::<u64>(), response())
            .prop_map(|(call, response)| Message::Response { call, response }),
        event().prop_map(Message::Event),
    ]
}

pub fn to_rank() -> impl Strategy<Value = ToRank> {
    prop_oneof![
        rank_start().prop_map(ToRank::Start),
        (key(), key(), vec(way(), 0..4)).prop_map(|(previous, next, ways)| ToRank::Connect {
            previous,
            next,
            ways
        }),
        vec(way(), 0..4).prop_map(|ways| ToRank::Reroute { ways }),
        admit().prop_map(ToRank::Admit),
        seq().prop_map(|seq| ToRank::Cancel { seq }),
        Just(ToRank::Shrink),
        Just(ToRank::Unload),
    ]
}

pub fn from_rank() -> impl Strategy<Value = FromRank> {
    prop_oneof![
        (key(), any::<u16>()).prop_map(|(key, port)| FromRank::Listening { key, port }),
        progress().prop_map(FromRank::Loading),
        (any::<u64>(), text(), dtype()).prop_map(|(resident_bytes, device, dtype)| {
            FromRank::Ready { resident_bytes, device, dtype }
        }),
        (way(), text()).prop_map(|(way, cause)| FromRank::Moved { way, cause }),
        (seq(), any::<u32>(), any::<u32>(), option::of(logprobs())).prop_map(
            |(seq, index, token, logprobs)| FromRank::Token { seq, index, token, logprobs }
        ),
        (seq(), finish_reason(), timings())
            .prop_map(|(seq, reason, timings)| { FromRank::Finished { seq, reason, timings } }),
        (text(), option::of(rank()))
            .prop_map(|(message, blame)| FromRank::Failed { message, blame }),
    ]
}

pub fn to_node() -> impl Strategy<Value = ToNode> {
    prop_oneof![
        serve().prop_map(|serve| ToNode::Serve(Box::new(serve))),
        serve().prop_map(|serve| ToNode::Plan(Box::new(serve))),
        any::<u64>().prop_map(|grace_ms| ToNode::Drain { grace_ms }),
        Just(ToNode::Detach),
        any::<u64>().prop_map(|grace_ms| ToNode::Stop { grace_ms }),
        Just(ToNode::Status),
        Just(ToNode::Survey),
        (text(), any::<u32>()).prop_map(|(node, lines)| ToNode::Logs { node, lines }),
        Just(ToNode::Peers),
        Just(ToNode::Pair(Pairing::Show)),
        (text(), vec(addr(), 0..4))
            .prop_map(|(code, peers)| ToNode::Pair(Pairing::Enter { code, peers })),
        (text(), vec(addr(), 0..4))
            .prop_map(|(token, peers)| ToNode::Pair(Pairing::Join { token, peers })),
        any::<u32>().prop_map(|ttl_s| ToNode::Invite { ttl_s }),
        Just(ToNode::Down),
    ]
}

pub fn from_node() -> impl Strategy<Value = FromNode> {
    prop_oneof![
        plan_report().prop_map(|plan| FromNode::Plan(Box::new(plan))),
        (rank(), text(), progress()).prop_map(|(rank, node, progress)| FromNode::Progress {
            rank,
            node,
            progress
        }),
        (text(), text(), vec(rank_status(), 0..4), any::<u32>()).prop_map(
            |(url, model, ranks, context)| FromNode::Ready { url, model, ranks, context }
        ),
        text().prop_map(|reason| FromNode::Degraded { reason }),
        Just(FromNode::Stopped),
        refusal().prop_map(FromNode::Refused),
        node_status().prop_map(FromNode::Status),
        survey().prop_map(|survey| FromNode::Survey(Box::new(survey))),
        text().prop_map(FromNode::Note),
        text().prop_map(FromNode::Logs),
        peers_view().prop_map(FromNode::Peers),
        (text(), any::<u32>()).prop_map(|(code, expires_s)| FromNode::PairCode { code, expires_s }),
        (node_id(), name()).prop_map(|(id, name)| FromNode::Paired { id, name }),
        (text(), any::<u32>())
            .prop_map(|(token, expires_s)| FromNode::Invitation { token, expires_s }),
        Just(FromNode::Stopping),
    ]
}

prop_compose! {
    fn peers_view()(
        peers in vec(peer_status(), 0..4), interfaces in vec(text(), 0..3), hidden in any::<u64>(),
        faults in vec(refusal(), 0..3),
    ) -> PeersView {
        PeersView { peers, interfaces, hidden, faults }
    }
}

prop_compose! {
    fn peer_status()(
        id in node_id(), name in option::of(name()), build in option::of(text()),
        paired in any::<bool>(), state in peer_state(), addr in option::of(addr()),
        interface in option::of(text()), age_ms in option::of(any::<u64>()),
        reason in option::of(text()), remedy in option::of(text()), facts in option::of(facts()),
        link in option::of(link_status()),
    ) -> PeerStatus {
        PeerStatus {
            id, name, build, paired, state, addr, interface, age_ms, reason, remedy, facts, link
        }
    }
}

fn link_status() -> impl Strategy<Value = LinkStatus> {
    ([text(), text()], kind(), sample()).prop_map(|(devices, kind, sample)| LinkStatus {
        devices,
        kind,
        sample,
    })
}

fn peer_state() -> impl Strategy<Value = PeerState> {
    prop_oneof![
        Just(PeerState::Ready),
        Just(PeerState::Connecting),
        Just(PeerState::Gone),
        Just(PeerState::Unpaired),
        Just(PeerState::OneSided),
        Just(PeerState::OtherVersion),
    ]
}

fn any_step() -> impl Strategy<Value = Step> {
    let row = (seq(), any::<u32>(), any::<u32>(), any::<bool>())
        .prop_map(|(seq, first, count, logits)| Row { seq, first, count, logits });
    (
        pipeline(),
        any::<u64>(),
        vec(row, 0..20),
        vec(seq(), 0..20),
        dtype(),
        any::<u32>(),
        any::<u32>(),
    )
        .prop_map(|(pipeline, number, rows, release, dtype, tokens, width)| Step {
            pipeline,
            number,
            rows,
            release,
            dtype,
            tokens,
            width,
        })
}

fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        Just(Request::Facts),
        path().prop_map(|path| Request::Checkpoint { path }),
        (vec(interface(), 0..3), any::<u16>())
            .prop_map(|(interfaces, probe_port)| Request::Probe { interfaces, probe_port }),
        node_link().prop_map(Request::Agree),
        (node_id(), node_facts(), any::<bool>()).prop_map(|(node, about, insists)| {
            Request::LinkTo { node, about: Box::new(about), insists }
        }),
        rank_start().prop_map(Request::Stage),
        (pipeline(), key(), key(), vec(way(), 0..4)).prop_map(
            |(pipeline, previous, next, ways)| {
                Request::Connect { pipeline, previous, next, ways }
            }
        ),
        (pipeline(), vec(way(), 0..4))
            .prop_map(|(pipeline, ways)| Request::Reroute { pipeline, ways }),
        pipeline().prop_map(|pipeline| Request::Resume { pipeline }),
        (pipeline(), way()).prop_map(|(pipeline, to)| Request::Relay { pipeline, to }),
        pipeline().prop_map(|pipeline| Request::Stop { pipeline }),
        any::<u32>().prop_map(|lines| Request::Logs { lines }),
        to_node().prop_map(|said| Request::Attend(Box::new(said))),
    ]
}

fn response() -> impl Strategy<Value = Response> {
    let checkpoint = prop_oneof![any::<[u8; 32]>().prop_map(Ok), text().prop_map(Err)];
    let trial = (path_end(), path_end(), outcome());
    let trial = trial.prop_map(|(own, other, outcome)| Trial { own, other, outcome });
    prop_oneof![
        node_facts().prop_map(|facts| Response::Facts(Box::new(facts))),
        checkpoint.prop_map(Response::Checkpoint),
        vec(trial, 0..3).prop_map(Response::Probed),
        node_link().prop_map(Response::Link),
        any::<u16>().prop_map(|port| Response::Relaying { port }),
        (any::<u32>(), key(), any::<u16>()).prop_map(|(pid, key, port)| Response::Staged {
            pid,
            key,
            port
        }),
        Just(Response::Done),
        refusal().prop_map(Response::Refused),
        text().prop_map(Response::Logs),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        (pipeline(), rank(), progress()).prop_map(|(pipeline, rank, progress)| Event::Loading {
            pipeline,
            rank,
            progress
        }),
        (pipeline(), rank(), any::<u64>(), text(), dtype()).prop_map(
            |(pipeline, rank, resident_bytes, device, dtype)| Event::Ready {
                pipeline,
                rank,
                resident_bytes,
                device,
                dtype
            }
        ),
        (pipeline(), rank(), text(), option::of(rank())).prop_map(
            |(pipeline, rank, reason, blame)| Event::Exited { pipeline, rank, reason, blame }
        ),
        option::of(from_node()).prop_map(|said| Event::Said(said.map(Box::new))),
        (pipeline(), rank(), option::of(text()))
            .prop_map(|(pipeline, rank, short)| Event::Memory { pipeline, rank, short }),
    ]
}

prop_compose! {
    fn rank_start()(
        pipeline in pipeline(), rank in rank(), world in any::<u32>(), shard in shard(),
        checkpoint in path(), dtype in option::of(dtype()), bind in addr(), chunk in any::<u32>(),
        sequences in any::<u32>(), tokens in any::<u64>(), needs_bytes in any::<u64>(),
    ) -> RankStart {
        let budget = Budget { sequences, tokens };
        RankStart { pipeline, rank, world, shard, checkpoint, dtype, bind, chunk, budget, needs_bytes }
    }
}

prop_compose! {
    fn admit()(
        seq in seq(), prompt in vec(any::<u32>(), 0..200), max_tokens in any::<u32>(),
        eos in vec(any::<u32>(), 0..4), sampling in sampling(),
        bias in vec((any::<u32>(), -100.0_f32..100.0), 0..4), logprobs in option::of(any::<u32>()),
    ) -> Admit {
        Admit { seq, prompt, max_tokens, eos, sampling, bias, logprobs }
    }
}

prop_compose! {
    fn sampling()(
        temperature in 0.0_f32..4.0, top_p in 0.0_f32..=1.0, top_k in any::<u32>(),
        min_p in 0.0_f32..=1.0, repetition_penalty in 0.1_f32..2.0,
        presence_penalty in -2.0_f32..2.0, frequency_penalty in -2.0_f32..2.0,
        seed in any::<u64>(),
    ) -> Sampling {
        Sampling {
            temperature, top_p, top_k, min_p, repetition_penalty, presence_penalty,
            frequency_penalty, seed,
        }
    }
}

prop_compose! {
    fn logprobs()(
        drawn in -100.0_f32..0.0, top in vec((any::<u32>(), -100.0_f32..0.0), 0..21),
    ) -> Logprobs {
        Logprobs { drawn, top }
    }
}

prop_compose! {
    fn serve()(
        model in path(), driver in option::of(text()), host in option::of(text()),
        port in any::<u16>(), peers in vec(addr(), 0..4),
        layers in vec(any::<u32>(), 0..5), nodes in nodes(), exclude in vec(text(), 0..2),
        links in link_wish(), context in option::of(any::<u32>()), sequences in any::<u32>(),
        headroom in headroom(), chunk in any::<u32>(), dtype in option::of(dtype()),
    ) -> Serve {
        Serve {
            model, driver, host, port, peers, layers, nodes, exclude, links, context, sequences, headroom,
            chunk, dtype,
        }
    }
}

fn headroom() -> impl Strategy<Value = Headroom> {
    prop_oneof![
        Just(Headroom::Usual),
        vec(any::<u64>(), 0..3).prop_map(Headroom::InOrder),
        vec((text(), any::<u64>()), 0..3).prop_map(Headroom::ByName),
    ]
}

prop_compose! {
    fn plan_report()(
        model in text(), ranks in vec(planned_rank(), 0..3), context in any::<u32>(),
        context_max in any::<u32>(), sequences in any::<u32>(), prediction in prediction(),
        others in vec(other_plan(), 0..2), notes in vec(text(), 0..2),
    ) -> PlanReport {
        PlanReport { model, ranks, context, context_max, sequences, prediction, others, notes }
    }
}

prop_compose! {
    fn planned_rank()(
        planned in planned(), work_bytes in any::<u64>(), spare_bytes in any::<u64>(),
        margin_bytes in any::<u64>(), bound in text(),
    ) -> PlannedRank {
        PlannedRank { planned, work_bytes, spare_bytes, margin_bytes, bound }
    }
}

prop_compose! {
    fn prediction()(
        token_us in any::<u64>(), hops_us in any::<u64>(),
        first_token in option::of((any::<u32>(), any::<u64>())),
    ) -> Prediction {
        let first_token = first_token.map(|(prompt_tokens, us)| FirstToken { prompt_tokens, us });
        Prediction { token_us, hops_us, first_token }
    }
}

prop_compose! {
    fn other_plan()(
        what in text(), args in vec(text(), 0..3), context_max in any::<u32>(),
        prediction in prediction(),
    ) -> OtherPlan {
        OtherPlan { what, args, context_max, prediction }
    }
}

prop_compose! {
    fn planned()(
        rank in rank(), node in node_id(), node_name in text(), shard in shard(),
        weight_bytes in any::<u64>(),
    ) -> PlannedShard {
        PlannedShard { rank, node, node_name, shard, weight_bytes }
    }
}

prop_compose! {
    fn rank_status()(
        planned in planned(), pid in any::<u32>(), resident_bytes in any::<u64>(),
        device in text(),
    ) -> RankStatus {
        RankStatus { planned, pid, resident_bytes, device }
    }
}

prop_compose! {
    fn node_status()(
        id in node_id(), name in name(), build in text(), control_port in any::<u16>(),
        serving in option::of(text()), ranks in vec(rank_status(), 0..3),
    ) -> NodeStatus {
        NodeStatus { id, name, build, control_port, serving, ranks }
    }
}

prop_compose! {
    fn refusal()(
        message in text(), hints in vec(text(), 0..3),
        kind in prop_oneof![
            Just(RefusalKind::CannotBeDone), Just(RefusalKind::Usage),
            Just(RefusalKind::NotReachable),
        ],
    ) -> Refusal {
        Refusal { message, hints, kind }
    }
}

prop_compose! {
    fn progress()(
        layers_done in any::<u32>(), layers_total in any::<u32>(), resident_bytes in any::<u64>(),
    ) -> LoadProgress {
        LoadProgress { layers_done, layers_total, resident_bytes }
    }
}

prop_compose! {
    fn timings()(
        queue_us in any::<u64>(), prefill_us in any::<u64>(), decode_us in any::<u64>(),
    ) -> Timings {
        Timings { queue_us, prefill_us, decode_us }
    }
}

prop_compose! {
    fn shard()(
        start in any::<u32>(), end in any::<u32>(), has_embedding in any::<bool>(),
        has_head in any::<bool>(),
    ) -> Shard {
        Shard { layers: LayerRange::new(start, end), has_embedding, has_head }
    }
}

fn nodes() -> impl Strategy<Value = Nodes> {
    prop_oneof![
        Just(Nodes::Best),
        Just(Nodes::All),
        any::<u32>().prop_map(Nodes::Count),
        vec(text(), 0..3).prop_map(Nodes::Named),
    ]
}

prop_compose! {
    fn link_wish()(
        any in any::<bool>(), interfaces in vec(text(), 0..2),
        exclude_interfaces in vec(text(), 0..2),
    ) -> LinkWish {
        LinkWish { any, interfaces, exclude_interfaces }
    }
}

prop_compose! {
    fn survey()(
        id in node_id(), own in node_facts(),
        peers in vec((node_id(), option::of(node_facts()), option::of(node_link()),
                      option::of(text())), 0..2),
        unreached in vec((addr(), text()), 0..2), findings in vec((text(), text()), 0..2),
    ) -> Survey {
        let row = |(id, facts, link, lost)| PeerSurvey { id, facts, link, lost };
        Survey {
            id,
            own,
            peers: peers.into_iter().map(row).collect(),
            unreached: unreached.into_iter().map(|(addr, fault)| Unreached { addr, fault }).collect(),
            findings: findings.into_iter().map(|(what, remedy)| Finding { what, remedy }).collect(),
        }
    }
}

prop_compose! {
    fn node_facts()(
        name in name(), facts in facts(), interfaces in vec(interface(), 0..3),
        cables in vec(cable(), 0..3), control_port in any::<u16>(), probe_port in any::<u16>(),
    ) -> NodeFacts {
        NodeFacts { name, facts, interfaces, cables, control_port, probe_port }
    }
}

prop_compose! {
    fn facts()(
        bytes in any::<[u64; 2]>(), limits in any::<[Option<u64>; 4]>(),
        ceiling_percent in any::<Option<u8>>(),
        pressure in option::of(prop_oneof![
            Just(Pressure::Normal), Just(Pressure::Warning), Just(Pressure::Critical),
        ]),
        chip in option::of(text()), os in option::of(text()),
        power in option::of((any::<bool>(), any::<Option<u8>>(), any::<bool>())),
    ) -> Facts {
        Facts {
            memory_bytes: bytes[0],
            available_bytes: bytes[1],
            memory_limit_bytes: limits[0],
            ceiling_percent,
            gpu_limit_bytes: limits[1],
            swap_used_bytes: limits[2],
            pressure,
            chip,
            memory_bytes_per_s: limits[3],
            os,
            power: power.map(|(on_battery, charge_percent, low_power)| Power {
                on_battery, charge_percent, low_power,
            }),
        }
    }
}

prop_compose! {
    fn interface()(
        device in device(), kind in kind(), mtu in any::<u32>(),
        addrs in vec((any::<IpAddr>(), any::<u8>()), 0..3),
    ) -> Interface {
        let addr = |(ip, prefix)| Address { ip, prefix };
        Interface { device, kind, mtu, addrs: addrs.into_iter().map(addr).collect() }
    }
}

prop_compose! {
    fn cable()(
        receptacle in any::<u8>(), own_domain in text(), peer_domain in text(),
        gbit_per_s in any::<Option<u16>>(),
    ) -> Cable {
        Cable { receptacle, own_domain, peer_domain, gbit_per_s }
    }
}

fn device() -> impl Strategy<Value = Device> {
    (text(), any::<u32>()).prop_map(|(name, index)| Device { name, index })
}

fn kind() -> impl Strategy<Value = LinkKind> {
    prop_oneof![
        any::<Option<u16>>().prop_map(|gbit_per_s| LinkKind::ThunderboltBridge { gbit_per_s }),
        any::<Option<u16>>().prop_map(|gbit_per_s| LinkKind::ThunderboltPort { gbit_per_s }),
        any::<Option<u32>>().prop_map(|mbit_per_s| LinkKind::Ethernet { mbit_per_s }),
        Just(LinkKind::WiFi),
        Just(LinkKind::Tunnel),
        Just(LinkKind::VirtualBridge),
        Just(LinkKind::Loopback),
        Just(LinkKind::Unknown),
    ]
}

fn path_end() -> impl Strategy<Value = PathEnd> {
    (device(), kind(), any::<IpAddr>()).prop_map(|(device, kind, ip)| PathEnd { device, kind, ip })
}

fn outcome() -> impl Strategy<Value = Result<Sample, String>> {
    prop_oneof![sample().prop_map(Ok), text().prop_map(Err)]
}

fn sample() -> impl Strategy<Value = Sample> {
    (any::<u32>(), any::<u32>(), any::<u16>(), any::<u64>()).prop_map(
        |(rtt_median_us, rtt_worst_us, probes, bit_per_s)| Sample {
            rtt_median_us,
            rtt_worst_us,
            probes,
            bit_per_s,
        },
    )
}

fn node_link() -> impl Strategy<Value = NodeLink> {
    let path = ([path_end(), path_end()], [outcome(), outcome()])
        .prop_map(|(ends, trials)| Path { ends, trials });
    ([node_id(), node_id()], any::<u64>(), vec(path, 0..3))
        .prop_map(|(nodes, round, paths)| NodeLink { nodes, round, paths })
}

fn way() -> impl Strategy<Value = Way> {
    (addr(), option::of(device())).prop_map(|(addr, device)| Way { addr, device })
}

fn addr() -> impl Strategy<Value = SocketAddr> {
    (any::<IpAddr>(), any::<u16>(), any::<u32>()).prop_map(|(ip, port, scope)| match ip {
        IpAddr::V4(ip) => SocketAddr::from((ip, port)),
        IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, scope).into(),
    })
}

fn dtype() -> impl Strategy<Value = Dtype> {
    prop_oneof![Just(Dtype::F32), Just(Dtype::F16), Just(Dtype::Bf16)]
}

fn finish_reason() -> impl Strategy<Value = FinishReason> {
    prop_oneof![Just(FinishReason::Stop), Just(FinishReason::Length), Just(FinishReason::Cancelled)]
}

fn pipeline() -> impl Strategy<Value = PipelineId> {
    any::<u64>().prop_map(PipelineId)
}

fn rank() -> impl Strategy<Value = Rank> {
    any::<u32>().prop_map(Rank)
}

fn seq() -> impl Strategy<Value = SeqId> {
    any::<u64>().prop_map(SeqId)
}

fn key() -> impl Strategy<Value = RankKey> {
    any::<[u8; 32]>().prop_map(RankKey)
}

fn node_id() -> impl Strategy<Value = NodeId> {
    any::<[u8; 32]>().prop_map(NodeId)
}

fn name() -> impl Strategy<Value = NodeName> {
    text().prop_map(|text| {
        NodeName::nearest(&text).unwrap_or_else(|| NodeName::new("mini").expect("a name"))
    })
}

/// Any characters: names of machines and models have accents and emoji in them.
fn text() -> impl Strategy<Value = String> {
    vec(any::<char>(), 0..20).prop_map(String::from_iter)
}

fn path() -> impl Strategy<Value = PathBuf> {
    text().prop_map(PathBuf::from)
}
