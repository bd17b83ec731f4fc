use core::net::IpAddr;

use daisy_proto::local::LinkWish;
use daisy_proto::{Address, Device, Interface, LinkKind, NodeId, NodeLink, PathEnd, Sample, Trial};

use super::*;

const CABLE: LinkKind = LinkKind::ThunderboltBridge { gbit_per_s: None };
const WIRE: LinkKind = LinkKind::Ethernet { mbit_per_s: Some(10_000) };

fn device(name: &str) -> Device {
    Device { name: name.to_owned(), index: 1 }
}

fn interface(name: &str, kind: LinkKind, addrs: &[&str]) -> Interface {
    let addr = |text: &&str| {
        let (ip, prefix) = text.split_once('/').expect("a prefix");
        Address { ip: ip.parse().expect("an ip"), prefix: prefix.parse().expect("a number") }
    };
    Interface { device: device(name), kind, mtu: 1500, addrs: addrs.iter().map(addr).collect() }
}

fn end(name: &str, kind: LinkKind, ip: &str) -> PathEnd {
    PathEnd { device: device(name), kind, ip: ip.parse::<IpAddr>().expect("an ip") }
}

fn sample(rtt_us: u32, mbit_per_s: u64) -> Sample {
    Sample {
        rtt_median_us: rtt_us,
        rtt_worst_us: rtt_us * 2,
        probes: 50,
        bit_per_s: mbit_per_s * 1_000_000,
    }
}

type Tried = Result<Sample, &'static str>;

/// A link of two nodes; each row an interface, its kind, and what both ends measured.
fn link(rows: &[(&str, LinkKind, Tried, Tried)]) -> NodeLink {
    let trial = |(own, other): (&str, &str), row: usize, outcome: Tried| {
        let (name, kind, ..) = &rows[row];
        Trial {
            own: end(name, *kind, &format!("10.0.{row}.{own}")),
            other: end(name, *kind, &format!("10.0.{row}.{other}")),
            outcome: outcome.map_err(str::to_owned),
        }
    };
    let ours = (0..rows.len()).map(|row| trial(("1", "2"), row, rows[row].2)).collect();
    let theirs = (0..rows.len()).map(|row| trial(("2", "1"), row, rows[row].3)).collect();
    merge(NodeId([1; 32]), NodeId([2; 32]), 7, ours, theirs)
}

fn names(pairs: &[(PathEnd, PathEnd)]) -> Vec<String> {
    let name = |(own, other): &(PathEnd, PathEnd)| {
        format!("{} {} > {} {}", own.device.name, own.ip, other.device.name, other.ip)
    };
    pairs.iter().map(name).collect()
}

#[test]
fn what_cannot_work_is_not_tried() {
    let own = [
        interface("lo0", LinkKind::Loopback, &["127.0.0.1/8", "::1/128"]),
        interface(
            "en0",
            LinkKind::WiFi,
            &["192.168.1.20/24", "fe80::1/64", "2001:db8::1/64", "2001:db8::5/64"],
        ),
        interface("bridge0", CABLE, &["169.254.87.20/16", "fe80::2/64"]),
        interface("bridge100", LinkKind::VirtualBridge, &["192.168.64.1/24"]),
        interface("awdl0", LinkKind::Unknown, &["fe80::3/64"]),
    ];
    let other = [
        interface("lo0", LinkKind::Loopback, &["127.0.0.1/8", "::1/128"]),
        interface("en0", LinkKind::WiFi, &["192.168.1.21/24"]),
        interface("bridge0", CABLE, &["169.254.80.10/16", "fe80::4/64"]),
        interface("bridge100", LinkKind::VirtualBridge, &["192.168.64.1/24"]),
        interface("utun2", LinkKind::Tunnel, &["100.64.0.12/32"]),
    ];
    let expected = [
        // Either of two fe80 interfaces may be the one: measuring decides.
        "en0 fe80::1 > bridge0 fe80::4",
        "bridge0 fe80::2 > bridge0 fe80::4",
        "en0 192.168.1.20 > en0 192.168.1.21",
        "bridge0 169.254.87.20 > bridge0 169.254.80.10",
        "en0 192.168.1.20 > utun2 100.64.0.12",
    ];
    assert_eq!(names(&candidates(&own, &other, false)), expected);
    assert_eq!(
        names(&candidates(&own, &other, true)),
        ["lo0 127.0.0.1 > lo0 127.0.0.1"],
        "on one machine loopback is the way"
    );
    let many: Vec<Interface> =
        (0..40).map(|n| interface(&format!("en{n}"), WIRE, &[&format!("10.0.0.{n}/24")])).collect();
    let more: Vec<Interface> = (0..40)
        .map(|n| interface(&format!("en{n}"), WIRE, &[&format!("10.0.0.{}/24", n + 100)]))
        .collect();
    assert_eq!(candidates(&many, &more, false).len(), 32);
}

#[test]
fn both_ends_make_the_same_record() {
    let (a, b) = (NodeId([1; 32]), NodeId([2; 32]));
    let trial = |own: &PathEnd, other: &PathEnd, outcome: Tried| Trial {
        own: own.clone(),
        other: other.clone(),
        outcome: outcome.map_err(str::to_owned),
    };
    let (fast_a, fast_b) = (end("bridge0", CABLE, "10.0.0.1"), end("bridge0", CABLE, "10.0.0.2"));
    let (slow_a, slow_b) =
        (end("en0", LinkKind::WiFi, "10.0.1.1"), end("en1", LinkKind::WiFi, "10.0.1.2"));
    let (odd_a, odd_b) = (end("en5", WIRE, "10.0.2.1"), end("en5", WIRE, "10.0.2.2"));
    let from_a = vec![
        trial(&slow_a, &slow_b, Ok(sample(200, 50_000))),
        trial(&fast_a, &fast_b, Ok(sample(600, 9000))),
        trial(&odd_a, &odd_b, Ok(sample(100, 9000))),
    ];
    let from_b = vec![
        trial(&odd_b, &odd_a, Err("no answer")),
        trial(&fast_b, &fast_a, Ok(sample(500, 8000))),
        trial(&slow_b, &slow_a, Ok(sample(100, 50_000))),
        trial(&slow_b, &odd_a, Err("no answer")),
    ];
    let at_a = merge(a, b, 3, from_a.clone(), from_b.clone());
    let at_b = merge(b, a, 3, from_b, from_a);
    assert_eq!(at_a, at_b);
    assert_eq!(at_a.nodes, [a, b]);
    let order: Vec<&str> = at_a.paths.iter().map(|p| p.ends[0].device.name.as_str()).collect();
    assert_eq!(order, ["bridge0", "en0", "en5", "en5"], "Wi-Fi is behind, one way counts as none");
    let best = figures(&at_a.paths[0]).expect("it works");
    assert_eq!((best.rtt_median_us, best.bit_per_s), (600, 8_000_000_000), "the slower way counts");
    assert_eq!(ends(&at_a, &at_a.paths[0], b).0.ip, fast_b.ip);
    let seen = status(&at_a, a).expect("it works");
    assert_eq!(
        (seen.devices, seen.kind, seen.sample),
        (["bridge0", "bridge0"].map(str::to_owned), CABLE, best)
    );
    let way = |from_a: Tried, from_b: Tried| {
        merge(a, b, 1, vec![trial(&slow_a, &slow_b, from_a)], vec![trial(&slow_b, &slow_a, from_b)])
    };
    let ok = Ok(sample(200, 300));
    let seen = status(&way(ok, ok), b).expect("it works");
    assert_eq!(seen.devices, ["en1", "en0"], "this node's end first");
    assert_eq!(status(&way(ok, Err("no answer")), a), None);
    assert!(leads(a, b) && !leads(b, a), "one of two measures");
}

#[test]
fn the_best_path_is_quick_and_then_wide() {
    let good = |rtt, mbit| Ok(sample(rtt, mbit));
    for (rows, best) in [
        (
            vec![
                ("en0", WIRE, good(300, 900), good(300, 900)),
                ("bridge0", CABLE, good(300, 20_000), good(300, 20_000)),
            ],
            "bridge0",
        ),
        // A hair quicker is no reason to leave the cable.
        (
            vec![
                ("en0", WIRE, good(600, 10_000), good(600, 10_000)),
                ("bridge0", CABLE, good(610, 10_000), good(610, 10_000)),
            ],
            "bridge0",
        ),
        (
            vec![
                ("en0", WIRE, good(100, 10_000), good(100, 10_000)),
                ("bridge0", CABLE, good(900, 10_000), good(900, 10_000)),
            ],
            "en0",
        ),
        (
            vec![
                ("en0", LinkKind::WiFi, good(1000, 900), good(1000, 900)),
                ("utun", LinkKind::Tunnel, good(4000, 100), good(4000, 100)),
            ],
            "utun",
        ),
        (
            vec![
                ("en0", WIRE, good(90_000, 900), good(90_000, 900)),
                ("en1", WIRE, Err("no answer"), good(100, 900)),
            ],
            "en0",
        ),
    ] {
        assert_eq!(link(&rows).paths[0].ends[0].device.name, best, "{rows:?}");
    }
}

fn edge(link: Option<Result<NodeLink, String>>, has_cable: bool) -> Edge {
    Edge { from: "`studio`".to_owned(), to: "`mini`".to_owned(), link, has_cable }
}

#[test]
fn slow_links_are_refused_with_what_helps() {
    let wish = LinkWish::default();
    let cable = ("bridge0", CABLE, Ok(sample(600, 20_000)), Ok(sample(600, 20_000)));
    let wifi = ("en0", LinkKind::WiFi, Ok(sample(9000, 300)), Ok(sample(7000, 300)));
    let blocked = ("bridge0", CABLE, Ok(sample(600, 20_000)), Err("no answer"));
    let far = ("en5", WIRE, Ok(sample(5100, 2000)), Ok(sample(4000, 2000)));
    let near = ("en5", WIRE, Ok(sample(5000, 2000)), Ok(sample(4000, 2000)));
    let narrow = ("en5", WIRE, Ok(sample(400, 999)), Ok(sample(400, 5000)));
    let ok = |rows: &[_]| edge(Some(Ok(link(rows))), false);

    assert_eq!(check(&[ok(&[cable, wifi])], &wish, 8192), Ok(vec![]));
    assert_eq!(check(&[ok(&[near])], &wish, 8192), Ok(vec![]));
    assert_eq!(check(&[edge(None, false)], &wish, 8192), Ok(vec![]), "one node alone");
    let warnings = check(&[ok(&[narrow]), ok(&[narrow])], &wish, 8192).expect("only a warning");
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("999 Mbit/s"), "{warnings:?}");

    for (edge, fault, hint) in [
        (
            ok(&[wifi]),
            "Wi-Fi, with a median round trip of 9.00 ms",
            "by a Thunderbolt cable, or by Ethernet",
        ),
        (edge(Some(Ok(link(&[wifi]))), true), "Wi-Fi", "switch `Thunderbolt Bridge` on"),
        (ok(&[wifi, blocked]), "Wi-Fi", "bridge0 - bridge0 works from one end only: a firewall"),
        (ok(&[far]), "5.10 ms, more than 5.00 ms", "Thunderbolt cable"),
        (ok(&[blocked]), "no pair of addresses works from both ends", "daisy doctor"),
        (
            edge(Some(Err("no answer".to_owned())), false),
            "could not be measured: no answer",
            "daisy doctor",
        ),
    ] {
        let refusal = check(&[edge], &wish, 8192).expect_err(fault);
        assert!(refusal.message.contains(fault), "{}", refusal.message);
        assert!(refusal.hints[0].contains(hint), "{:?}", refusal.hints);
    }
    // With the figures of the whole ring: there and back.
    let ring = [ok(&[wifi]), Edge { from: "`mini`".into(), to: "`studio`".into(), ..ok(&[wifi]) }];
    let refusal = check(&ring, &wish, 8192).expect_err("Wi-Fi");
    assert_eq!(refusal.message.matches("cannot carry").count(), 1, "one link, one fault");
    assert_eq!(refusal.hints[1], "`--link any` uses it all the same, for about 9.44 ms per token");
    let any = LinkWish { any: true, ..LinkWish::default() };
    let warnings = check(&ring, &any, 8192).expect("it goes on");
    assert!(warnings.last().expect("a cost").contains("about 9.44 ms per token"), "{warnings:?}");
    check(&[ok(&[blocked])], &any, 8192).expect_err("nothing to use");
}

#[test]
fn a_look_at_the_best_path_keeps_the_record_while_it_stays_good() {
    let cable = ("bridge0", CABLE, Ok(sample(600, 20_000)), Ok(sample(600, 20_000)));
    let wifi = ("en0", LinkKind::WiFi, Ok(sample(900, 300)), Ok(sample(700, 300)));
    let (link, me) = (link(&[cable, wifi]), NodeId([2; 32]));
    let latency = |rtt_us| Sample { bit_per_s: 0, ..sample(rtt_us, 1) };
    let again = refreshed(&link, me, latency(650)).expect("it is still good");
    assert_eq!(again.round, link.round + 1);
    let own = again.paths[0].trials[1].as_ref().expect("it works");
    assert_eq!((own.rtt_median_us, own.bit_per_s), (650, 20_000_000_000), "no burst, the old rate");
    for rtt_us in [2500, 9000] {
        assert_eq!(
            refreshed(&link, me, latency(rtt_us)),
            None,
            "{rtt_us} µs: all must be measured"
        );
    }
    let wish = LinkWish::default();
    assert_eq!(best_now(&link, &wish), best_now(&again, &wish), "nothing to tell");
    let without = LinkWish { exclude_interfaces: vec!["bridge0".to_owned()], ..wish.clone() };
    assert!(best_now(&link, &without).contains("en0 - en0 (Wi-Fi) is best, and it is Wi-Fi"));
    assert_eq!(usable(&link, &without).count(), 0);
    let any = LinkWish { any: true, ..without };
    assert_eq!(usable(&link, &any).count(), 1);
}

#[test]
fn a_bad_way_is_changed_for_a_good_one() {
    let good = Ok(sample(600, 20_000));
    let far = Ok(sample(9000, 20_000));
    let (wish, any) = (LinkWish::default(), LinkWish { any: true, ..LinkWish::default() });
    let without = LinkWish { exclude_interfaces: vec!["en5".to_owned()], ..LinkWish::default() };
    let me = NodeId([2; 32]);
    let way = |row: usize, name: &str, kind| {
        (end(name, kind, &format!("10.0.{row}.2")), end(name, kind, &format!("10.0.{row}.1")))
    };
    let wifi = ("en0", LinkKind::WiFi, Ok(sample(900, 300)), Ok(sample(900, 300)));
    for (rows, in_use, wish, expected) in [
        // It is good: the better one is no reason to leave it.
        ([("bridge0", CABLE, good, good), ("en5", WIRE, good, good)], "en5", &wish, None),
        // It takes too long, or does not work from both ends.
        ([("bridge0", CABLE, far, far), ("en5", WIRE, good, good)], "bridge0", &wish, Some("en5")),
        (
            [("bridge0", CABLE, Err("no answer"), good), ("en5", WIRE, good, good)],
            "bridge0",
            &wish,
            Some("en5"),
        ),
        // Nothing is good, or allowed.
        ([("bridge0", CABLE, far, far), wifi], "bridge0", &any, None),
        ([("bridge0", CABLE, far, far), ("en5", WIRE, good, good)], "bridge0", &without, None),
        // A slow one that was asked for is left once there is a fast one.
        ([wifi, ("bridge0", CABLE, good, good)], "en0", &any, Some("bridge0")),
    ] {
        let row = rows.iter().position(|row| row.0 == in_use).expect("a row");
        let better = better(&link(&rows), wish, me, &way(row, in_use, rows[row].1));
        let found = better.first().map(|(own, _)| own.device.name.as_str());
        assert_eq!(found, expected, "{rows:?}");
        assert!(better.iter().all(|(own, _)| own.ip.to_string().ends_with(".2")), "{better:?}");
    }
    let gone = way(7, "en9", WIRE);
    let left = better(&link(&[("en5", WIRE, good, good)]), &wish, me, &gone);
    assert_eq!(left.len(), 1, "its interface is gone");
}

#[test]
fn interfaces_can_be_chosen_and_ruled_out() {
    let cable = ("bridge0", CABLE, Ok(sample(600, 20_000)), Ok(sample(600, 20_000)));
    let wifi = ("en0", LinkKind::WiFi, Ok(sample(900, 300)), Ok(sample(700, 300)));
    let both = link(&[cable, wifi]);
    for (interfaces, exclude, expected) in [
        (vec![], vec![], vec!["bridge0", "en0"]),
        (vec!["en0"], vec![], vec!["en0"]),
        (vec![], vec!["bridge0"], vec!["en0"]),
        (vec!["en7"], vec![], vec![]),
    ] {
        let own = |list: Vec<&str>| list.into_iter().map(str::to_owned).collect();
        let wish =
            LinkWish { any: false, interfaces: own(interfaces), exclude_interfaces: own(exclude) };
        let left: Vec<&str> =
            allowed(&both, &wish).map(|path| path.ends[0].device.name.as_str()).collect();
        assert_eq!(left, expected);
        if left.first() == Some(&"en0") {
            let edge = edge(Some(Ok(both.clone())), false);
            let refusal = check(&[edge], &wish, 8192).expect_err("Wi-Fi is left");
            assert!(
                refusal.hints[0].contains("rules bridge0 - bridge0 out"),
                "{:?}",
                refusal.hints
            );
        }
    }
}

#[test]
fn the_refusal_shows_the_measured_links() {
    let wifi = ("en0", LinkKind::WiFi, Ok(sample(9000, 300)), Ok(sample(7000, 300)));
    let blocked = ("bridge0", CABLE, Ok(sample(600, 20_000)), Err("no answer"));
    let edge = edge(Some(Ok(link(&[wifi, blocked]))), false);
    let refusal = check(&[edge], &LinkWish::default(), 8192).expect_err("Wi-Fi");
    assert_eq!(
        refusal.message,
        "the link between `studio` and `mini` cannot carry a model: it is Wi-Fi, with a median round trip of 9.00 ms
    link               over               kind         RTT      worst  bandwidth
  * `studio` - `mini`  en0 - en0          Wi-Fi        9.00 ms  18 ms  300 Mbit/s
    `studio` - `mini`  bridge0 - bridge0  Thunderbolt  no answer"
    );
}
