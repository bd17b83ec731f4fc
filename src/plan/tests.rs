use std::time::{Duration, Instant};

use daisy_proto::local::Refusal;
use proptest::prelude::*;

use super::search::Objective;
use super::*;

const GIB: u64 = 1 << 30;

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "sizes of machines, as people write them"
)]
fn gib(size: f64) -> u64 {
    (size * GIB as f64) as u64
}

/// A layer of so many bytes, all of them read for each token.
fn layer(weight_bytes: u64) -> Layer {
    Layer { weight_bytes, active_bytes: weight_bytes, ..Layer::default() }
}

fn model(layers: Vec<Layer>, ends: u64) -> Model {
    Model {
        layers,
        ends: Ends { weight_bytes: ends, active_bytes: 0 },
        work_bytes_per_token: 0,
        hidden_bytes: 0,
        parameters: 1,
        context_max: 1 << 18,
    }
}

/// All that `bytes` says may be taken.
fn node(name: &str, bytes: u64) -> Node {
    Node {
        name: name.to_owned(),
        total_bytes: bytes,
        available_bytes: bytes,
        limit_bytes: None,
        gpu_limit_bytes: None,
        swap_used_bytes: None,
        reserve_bytes: 0,
        ceiling: None,
        speed: Speed { bytes_per_s: Some(1_000_000_000), flop_per_s: None },
    }
}

/// Every node reaches every other one at once.
fn joined(nodes: usize) -> Hops {
    let mut hops = Hops::none(nodes);
    for (a, b) in (0..nodes).flat_map(|a| (0..a).map(move |b| (a, b))) {
        hops.set(a, b, Hop { one_way_ns: 0, bit_per_s: 1_000_000_000 });
    }
    hops
}

fn wish(cut: Cut) -> Wish {
    Wish { cut, context: Some(0), sequences: 1, chunk: 0 }
}

fn counts(ranks: &[Ranked]) -> Vec<u32> {
    ranks.iter().map(|ranked| ranked.shard.layers.len()).collect()
}

mod seeds_pair {
    //! Qwen3.5-122B-A10B in mixed precision (42.8 GiB, 48 layers, heavier late ones) on a 36 GB M3 Max
    //! and a 24 GB M4, as measured there: 30 and 18 layers are the known good split.

    use super::*;

    fn checkpoint() -> Model {
        let size = |layer: u32| match layer {
            0..8 => 0.7625,
            8..24 => 0.756,
            24..28 => 0.675,
            28..30 => 0.90,
            _ => 0.9222,
        };
        let layers = (0..48).map(|number| Layer {
            kv_bytes_per_token: if number % 4 == 3 { 2048 } else { 0 },
            ..layer(gib(size(number)))
        });
        let parameters = 122_000_000_000;
        Model { parameters, ..model(layers.collect(), gib(3.5)) }
    }

    fn macs(headroom: [f64; 2]) -> Vec<Node> {
        let mac = |name: &str, [total, free, gpu, reserve]: [f64; 4]| Node {
            total_bytes: gib(total),
            available_bytes: gib(free),
            gpu_limit_bytes: Some(gib(gpu)),
            reserve_bytes: gib(reserve),
            ceiling: Some(Ceiling::of_apple(gib(total))),
            ..node(name, 0)
        };
        vec![
            mac("studio", [36.0, 27.0, 30.0, headroom[0]]),
            mac("mini", [24.0, 21.4, 22.0, headroom[1]]),
        ]
    }

    fn planned(nodes: &[Node], cut: Cut) -> Result<Plan, PlanError> {
        let wish = Wish { context: Some(4096), ..wish(cut) };
        plan(&checkpoint(), nodes, &joined(2), &wish)
    }

    fn refused(nodes: &[Node]) -> Shortage {
        match planned(nodes, Cut::Best) {
            Err(PlanError::Short(shortage)) => *shortage,
            other => panic!("not refused: {other:?}"),
        }
    }

    #[test]
    fn the_known_good_split_is_found_and_is_the_only_one() {
        let plan = planned(&macs([0.4, 4.1]), Cut::Best).expect("fits");
        assert_eq!(counts(&plan.ranks), [30, 18]);
        let weights = plan.ranks.iter().map(|r| crate::units::Tenths::of(r.fit.weight_bytes));
        assert_eq!(weights.map(|w| w.to_string()).collect::<Vec<_>>(), ["26.2", "16.6"]);
        for first in 1..48 {
            let by_hand = planned(&macs([0.4, 4.1]), Cut::Layers(vec![first, 48 - first]));
            assert_eq!(by_hand.is_ok(), first == 30, "{first} layers on rank 0");
        }
    }

    #[test]
    fn a_raised_gpu_limit_changes_nothing() {
        let nodes = macs([0.4, 4.1]);
        let mut raised = nodes.clone();
        raised[1].gpu_limit_bytes = Some(22_528 << 20);
        raised[1].available_bytes = gib(23.9);
        let of = |nodes: &[Node]| planned(nodes, Cut::Best).expect("fits").ranks;
        assert_eq!(counts(&of(&raised)), counts(&of(&nodes)));
    }

    #[test]
    fn the_default_reserve_refuses_it() {
        let shortage = refused(&macs([2.0, 2.0]));
        assert!(shortage.ranks.iter().any(|ranked| ranked.fit.short_bytes() > 0));
    }

    #[test]
    fn the_refusal_shows_the_split_that_lacks_least() {
        // 25.0 and 18.3 to spare, no ceiling.
        let mut nodes = macs([2.0, 3.1]);
        for node in &mut nodes {
            node.ceiling = None;
        }
        nodes[1].swap_used_bytes = Some(gib(5.1));
        let shortage = refused(&nodes);
        assert_eq!(counts(&shortage.ranks), [28, 20]);
        let refusal = shortage::refusal("ORG/MODEL", &shortage);
        assert_eq!(
            refusal.message,
            "\
ORG/MODEL does not fit the memory that the cluster can spare now

  rank  node    layers  weights  kv+work  needs  can spare  bound by
  0     studio  0-27    24.4     0.1      24.5   25.0       free 27.0 − 2.0 reserve
  1     mini    28-47   18.4     0.0      18.4   18.3       free 21.4 − 3.1 reserve  ← short by 0.1"
        );
        assert_eq!(
            refusal.hints,
            ["quit apps on `mini`, or restart it: it has 5.1 GiB in swap, which macOS does not \
                 shrink; 142.0 MiB more would do",]
        );
    }

    /// Every situation with the text that its user reads.
    #[test]
    fn refusals_are_worded_as_recorded() {
        let changed = |headroom, change: fn(&mut [Node])| {
            let mut nodes = macs(headroom);
            change(&mut nodes);
            nodes
        };
        let no_change: fn(&mut [Node]) = |_| {};
        let situations = [
            ("the usual reserve", changed([2.0, 2.0], no_change), 4096, Cut::Best),
            (
                "a full swap",
                changed([2.0, 3.1], |nodes| {
                    nodes[1].swap_used_bytes = Some(gib(5.1));
                    for node in nodes.iter_mut() {
                        node.ceiling = None;
                    }
                }),
                4096,
                Cut::Best,
            ),
            (
                "the GPU's limit",
                changed([0.4, 4.1], |nodes| {
                    nodes[0].gpu_limit_bytes = Some(gib(26.0));
                    nodes[1].gpu_limit_bytes = Some(gib(17.0));
                }),
                4096,
                Cut::Best,
            ),
            (
                "the residency ceiling",
                changed([0.4, 0.4], |nodes| {
                    nodes[0].total_bytes = gib(32.0);
                }),
                4096,
                Cut::Best,
            ),
            (
                "a memory limit",
                changed([0.4, 4.1], |nodes| {
                    nodes[0].limit_bytes = Some(gib(20.0));
                }),
                4096,
                Cut::Best,
            ),
            ("a long context", changed([0.4, 4.1], no_change), 100_000, Cut::Best),
            (
                "a layer too many by hand",
                changed([0.4, 4.1], no_change),
                4096,
                Cut::Layers(vec![29, 19]),
            ),
            ("one machine alone", vec![macs([2.0, 2.0])[1].clone()], 4096, Cut::Best),
        ];
        let mut text = String::new();
        for (name, nodes, context, cut) in situations {
            let wish = Wish { context: Some(context), ..wish(cut) };
            let error = plan(&checkpoint(), &nodes, &joined(nodes.len()), &wish).expect_err(name);
            let Refusal { message, hints, .. } = error.refusal("ORG/MODEL");
            let lines = hints.iter().map(|hint| format!("hint: {hint}\n"));
            text.push_str(
                &[format!("# {name}\n{message}\n"), lines.collect(), "\n".to_owned()].concat(),
            );
        }
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/plan/refusals.txt");
        let recorded = std::fs::read_to_string(path).unwrap_or_default();
        assert_eq!(text, recorded, "what is said now is not what {path} has:\n{text}");
    }

    #[test]
    fn a_shorter_context_is_offered_where_that_is_all_it_takes() {
        let wish = Wish { context: Some(100_000), ..wish(Cut::Best) };
        let nodes = macs([0.4, 4.1]);
        let shortage = match plan(&checkpoint(), &nodes, &joined(2), &wish) {
            Err(PlanError::Short(shortage)) => shortage,
            other => panic!("not refused: {other:?}"),
        };
        let hints = shortage::refusal("m", &shortage).hints;
        let offered = hints.iter().find_map(|hint| {
            hint.strip_prefix("`--context ")?.strip_suffix("` would fit")?.parse().ok()
        });
        let context: u32 = offered.expect("a context");
        let asking = |context| Wish { context: Some(context), ..wish.clone() };
        assert!(plan(&checkpoint(), &nodes, &joined(2), &asking(context)).is_ok());
        assert!(plan(&checkpoint(), &nodes, &joined(2), &asking(context + 1)).is_err());
        assert_eq!(context_max(&checkpoint(), &nodes, &joined(2), &wish), context);
    }
}

#[test]
fn what_fits_one_node_is_split_only_when_asked() {
    let model = model(vec![layer(10); 10], 40);
    let nodes = [node("a", 1000), node("b", 1000), node("c", 1000)];
    let mut hops = joined(3);
    hops.set(0, 1, Hop { one_way_ns: 50, bit_per_s: 1_000_000_000 });
    let ranks = |cut| plan(&model, &nodes, &hops, &wish(cut)).expect("fits").ranks;
    assert_eq!(counts(&ranks(Cut::Best)), [10]);
    assert_eq!(ranks(Cut::All).len(), 3);
    let two = ranks(Cut::Ranks(2));
    assert_eq!(two.iter().map(|ranked| ranked.node).collect::<Vec<_>>(), [0, 2]);
    // As fast everywhere, so the margins decide: 70 bytes each.
    assert_eq!(counts(&two), [3, 7]);
    assert!(two[0].shard.has_embedding && two[0].shard.has_head);
    assert!(!two[1].shard.has_embedding && !two[1].shard.has_head);
}

#[test]
fn a_slow_node_gets_little_and_is_left_out_where_it_can_be() {
    let model = model(vec![layer(GIB); 10], 0);
    let mut nodes = [node("fast", 7 * GIB), node("slow", 20 * GIB), node("good", 7 * GIB)];
    nodes[1].speed.bytes_per_s = Some(100_000_000);
    let ranks = |nodes: &[Node]| {
        plan(&model, nodes, &joined(nodes.len()), &wish(Cut::Best)).expect("fits").ranks
    };
    let chosen = ranks(&nodes);
    assert_eq!(chosen.iter().map(|ranked| ranked.node).collect::<Vec<_>>(), [0, 2]);
    assert_eq!(counts(&ranks(&nodes[..2])), [7, 3]);
}

#[test]
fn experts_are_weighed_by_what_a_token_reads() {
    // The second half is of experts: as heavy, but little of it is read.
    let mut layers = vec![layer(GIB); 8];
    for layer in &mut layers[4..] {
        layer.active_bytes = GIB / 100;
    }
    let model = model(layers, 0);
    let mut nodes = [node("slow", 8 * GIB), node("fast", 4 * GIB)];
    nodes[1].speed.bytes_per_s = Some(4_000_000_000);
    nodes[0].available_bytes = 7 * GIB;
    let plan = plan(&model, &nodes, &joined(2), &wish(Cut::Best)).expect("fits");
    // Ranks are contiguous and the slow node drives: the fast one reads what it has room for.
    assert_eq!(counts(&plan.ranks), [4, 4]);
}

#[test]
fn without_a_link_there_is_no_edge() {
    let model = model(vec![layer(10); 4], 0);
    let nodes = [node("a", 15), node("b", 15), node("c", 15)];
    let mut hops = Hops::none(3);
    let hop = Hop { one_way_ns: 1, bit_per_s: 1_000_000_000 };
    let plan = |hops: &Hops, cut| plan(&model, &nodes, hops, &wish(cut));
    assert_eq!(plan(&hops, Cut::Ranks(2)), Err(PlanError::NoRing { ranks: 2 }));
    hops.set(0, 1, hop);
    hops.set(1, 2, hop);
    // The way back from c to a is missing.
    assert_eq!(plan(&hops, Cut::All), Err(PlanError::NoRing { ranks: 3 }));
    assert!(matches!(plan(&hops, Cut::Best), Err(PlanError::Short(_))));
    // Unless b passes on what c sends.
    let hops = hops.with_detours();
    let roomy = nodes.map(|node| Node { total_bytes: 25, available_bytes: 25, ..node });
    let found = super::plan(&model, &roomy, &hops, &wish(Cut::All)).expect("a ring");
    assert_eq!(counts(&found.ranks).len(), 3);
    assert_eq!((hops.detour(2, 0), hops.detour(0, 1)), (vec![1], vec![]));
    assert!(found.hops_ns > 4 * hop.ns(0), "two links there and two back, and b's own time");
}

#[test]
fn a_detour_is_the_shortest_there_is_and_only_where_no_link_is() {
    let hop = |one_way_ns| Hop { one_way_ns, bit_per_s: 1_000_000_000 };
    let mut hops = Hops::none(5);
    for (a, b, ns) in [(0, 1, 300_000), (1, 2, 300_000), (2, 3, 300_000), (0, 4, 1_000_000)] {
        hops.set(a, b, hop(ns));
    }
    hops.set(4, 3, Hop { one_way_ns: 1_000_000, bit_per_s: 7 });
    let found = hops.clone().with_detours();
    assert_eq!(found.detour(0, 3), [1, 2]);
    assert_eq!(found.detour(3, 0), [2, 1], "there as back");
    let over_two = found.at(0, 3).expect("a way");
    assert_eq!(over_two, Hop { one_way_ns: 1_000_000, bit_per_s: 1_000_000_000 });
    // A slow link is a link.
    hops.set(0, 3, hop(9_000_000));
    let found = hops.with_detours();
    assert_eq!((found.detour(0, 3), found.at(0, 3)), (vec![], Some(hop(9_000_000))));
    assert_eq!(found.among(&[0, 1, 2]).at(0, 2), None, "a detour is not taken over");
    assert_eq!(Hops::none(2).with_detours().at(0, 1), None);
}

#[test]
fn the_context_is_what_fits_up_to_the_models_own() {
    let with_kv = Layer { kv_bytes_per_token: 1, ..layer(1000) };
    let model = Model { context_max: 10_000, ..model(vec![with_kv; 2], 0) };
    let wish = Wish { context: None, sequences: 2, ..wish(Cut::Best) };
    for (bytes, context) in [(2000 + 4 * 5000, 5000), (1 << 30, 10_000)] {
        let plan = plan(&model, &[node("a", bytes)], &joined(1), &wish).expect("fits");
        assert_eq!((plan.context, plan.context_max), (context, context));
    }
    // Less than the least is no context to work with.
    let few = plan(&model, &[node("a", 2000 + 4 * 4095)], &joined(1), &wish);
    assert!(matches!(few, Err(PlanError::Short(_))), "{few:?}");
    let long = Wish { context: Some(10_001), ..wish };
    let refused = plan(&model, &[node("a", 1 << 30)], &joined(1), &long);
    assert_eq!(refused, Err(PlanError::Context { wanted: 10_001, most: 10_000 }));
}

#[test]
fn a_cut_by_hand_is_taken_as_it_is_or_refused() {
    let model = model(vec![layer(1); 30], 0);
    let by_hand = |layers: &[u32], nodes: usize| {
        let nodes = vec![node("n", 30); nodes];
        plan(&model, &nodes, &joined(nodes.len()), &wish(Cut::Layers(layers.to_vec())))
    };
    assert_eq!(counts(&by_hand(&[1, 29], 2).expect("fits").ranks), [1, 29]);
    for (layers, nodes, message) in [
        (&[15, 14][..], 2, "--layers 15,14 adds up to 29 layers, but the model has 30"),
        (&[30, 0], 2, "--layers 30,0 leaves rank 1 without a layer; each rank needs at least 1"),
        (&[15, 15], 1, "--layers 15,15 names 2 ranks, but 1 node(s) are reachable"),
    ] {
        assert_eq!(by_hand(layers, nodes).expect_err("refused").to_string(), message);
    }
}

#[test]
fn what_cannot_be_cut_is_refused() {
    let model = model(vec![layer(1); 3], 0);
    for (cut, nodes, error) in [
        (Cut::Ranks(0), 2, PlanError::NoRank),
        (Cut::Ranks(3), 2, PlanError::TooFewNodes { ranks: 3, nodes: 2 }),
        (Cut::All, 4, PlanError::TooFewLayers { layers: 3, ranks: 4 }),
        (Cut::Best, 9, PlanError::TooManyNodes { nodes: 9 }),
    ] {
        let nodes = vec![node("n", 3); nodes];
        assert_eq!(plan(&model, &nodes, &joined(nodes.len()), &wish(cut)), Err(error));
    }
}

/// Against the largest plan there can be. The bound is for debug builds on busy machines.
#[test]
fn eight_nodes_and_128_layers_are_planned_at_once() {
    let model = model(vec![layer(GIB); 128], GIB);
    let nodes: Vec<Node> = (0..8).map(|n| node("n", (100 + n) * GIB)).collect();
    let started = Instant::now();
    let plan = plan(&model, &nodes, &joined(8), &wish(Cut::All)).expect("fits");
    assert_eq!(plan.ranks.len(), 8);
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
}

/// Every split of the model over some of the nodes, node 0 first.
fn every_split(nodes: usize, layers: u32) -> Vec<Vec<Stage>> {
    fn extend(nodes: usize, layers: u32, split: &[Stage], all: &mut Vec<Vec<Stage>>) {
        let start = split.last().map_or(0, |stage| stage.layers.end);
        if start == layers {
            all.push(split.to_vec());
            return;
        }
        let is_free = |node: &usize| split.iter().all(|stage| stage.node != *node);
        for node in (0..nodes).filter(is_free).filter(|node| (*node == 0) == split.is_empty()) {
            for end in start + 1..=layers {
                let mut longer = split.to_vec();
                longer.push(Stage { node, layers: LayerRange::new(start, end) });
                extend(nodes, layers, &longer, all);
            }
        }
    }
    let mut all = Vec::new();
    extend(nodes, layers, &[], &mut all);
    all
}

fn cost<O: Objective>(objective: &O, split: &[Stage]) -> Option<O::Cost> {
    let mut cost = objective.rank(0, split[0].layers)?;
    for pair in split.windows(2) {
        cost = O::add(cost, objective.hop(pair[0].node, pair[1].node)?);
        cost = O::add(cost, objective.rank(pair[1].node, pair[1].layers)?);
    }
    Some(O::add(cost, objective.hop(split[split.len() - 1].node, 0)?))
}

/// A small cluster with everything that may differ.
fn cluster(nodes: usize) -> impl Strategy<Value = (Vec<Node>, Hops)> {
    let one =
        (0..40_u64, 1..5_u64, prop::option::of(20..100_u8)).prop_map(|(bytes, speed, ceiling)| {
            Node {
                ceiling: ceiling.map(|percent| Ceiling { percent }),
                speed: Speed { bytes_per_s: Some(speed * 1_000_000_000), flop_per_s: None },
                ..node("n", bytes)
            }
        });
    let links = prop::collection::vec(prop::option::weighted(0.8, 0..4_u64), nodes * nodes);
    (prop::collection::vec(one, nodes), links).prop_map(move |(nodes, links)| {
        let count = nodes.len();
        let mut hops = Hops::none(count);
        for (a, b) in (0..count).flat_map(|a| (0..a).map(move |b| (a, b))) {
            if let Some(one_way_ns) = links[a * count + b] {
                hops.set(a, b, Hop { one_way_ns, bit_per_s: 1_000_000_000 });
            }
        }
        (nodes, hops)
    })
}

fn layers(count: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Layer>> {
    let one = (1..10_u64, 0..10_u64, 0..3_u64).prop_map(|(bytes, active, kv)| Layer {
        weight_bytes: bytes,
        active_bytes: active.min(bytes),
        kv_bytes_per_token: kv,
        state_bytes: kv,
    });
    prop::collection::vec(one, count)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_search_finds_what_trying_every_split_finds(
        (nodes, hops) in (1..5_usize).prop_flat_map(cluster),
        layers in layers(1..13),
        ends in 0..10_u64,
        context in 0..3_u32,
    ) {
        let model = model(layers, ends);
        let demand = Demand { context, sequences: 1, chunk: 0 };
        let costs = Costs::new(&model, &nodes, &hops, demand);
        let splits = every_split(nodes.len(), model.layer_count());
        let ranks = std::iter::once(Ranks::Any)
            .chain((1..5_u32).take(nodes.len()).map(Ranks::Exactly));
        for ranks in ranks {
            let allowed = splits.iter().filter(|split| match ranks {
                Ranks::Any => true,
                Ranks::Exactly(count) => split.len() == count as usize,
            });
            let fastest = allowed.clone().filter_map(|split| cost(&Fastest(&costs), split)).min();
            let found = best(&Fastest(&costs), nodes.len(), model.layer_count(), ranks);
            prop_assert_eq!(found.map(|(cost, _)| cost), fastest);
            let least = allowed.filter_map(|split| cost(&LeastShort(&costs), split)).min();
            let found = best(&LeastShort(&costs), nodes.len(), model.layer_count(), ranks);
            prop_assert_eq!(found.map(|(cost, _)| cost), least);
        }
    }

    #[test]
    fn every_layer_once_in_order_and_nothing_over_its_limit(
        (nodes, hops) in (1..9_usize).prop_flat_map(cluster),
        layers in layers(1..129),
    ) {
        let model = model(layers, 3);
        // Up to 40 units each for up to 1200: scaled, so that some fit.
        let scaled: Vec<Node> = nodes
            .iter()
            .map(|node| Node {
                total_bytes: node.total_bytes * 20,
                available_bytes: node.available_bytes * 20,
                ..node.clone()
            })
            .collect();
        let planned = plan(&model, &scaled, &hops, &wish(Cut::Best));
        if let Ok(planned) = &planned {
            let mut next = 0;
            for ranked in &planned.ranks {
                prop_assert_eq!(ranked.shard.layers.start, next);
                prop_assert!(!ranked.shard.layers.is_empty());
                next = ranked.shard.layers.end;
                prop_assert_eq!(ranked.fit.short_bytes(), 0);
                let ranged = &model.layers[ranked.shard.layers.start as usize..next as usize];
                let ends = if ranked.rank.0 == 0 { 3 } else { 0 };
                let weights: u64 = ranged.iter().map(|layer| layer.weight_bytes).sum::<u64>() + ends;
                let node = &scaled[ranked.node];
                prop_assert_eq!(ranked.fit.weight_bytes, weights);
                prop_assert!(weights <= node.available_bytes);
                let most = node.ceiling.map_or(u64::MAX, |ceiling| ceiling.of(node.total_bytes));
                prop_assert!(weights <= most);
            }
            prop_assert_eq!(next as usize, model.layers.len());
        }
        // More memory is never worse, but that what fits one node goes there.
        let larger: Vec<Node> = scaled
            .iter()
            .map(|node| Node {
                total_bytes: node.total_bytes + 50,
                available_bytes: node.available_bytes + 50,
                ..node.clone()
            })
            .collect();
        let with_more = plan(&model, &larger, &hops, &wish(Cut::Best));
        match (&planned, &with_more) {
            (Ok(before), Ok(after)) => prop_assert!(
                after.token_ns <= before.token_ns || after.ranks.len() == 1
            ),
            (Ok(_), Err(error)) => prop_assert!(false, "with more memory: {error}"),
            (Err(_), _) => {}
        }
    }
}
