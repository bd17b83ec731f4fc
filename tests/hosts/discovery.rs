//! Nodes find, pair and lose each other over a cable that has link-local IPv6 and nothing else.

use std::time::{Duration, Instant};

use super::cluster::{Endless, Home, Process, await_gone, pids, tiny};
use super::rig::{Cable, await_state, chat, pair, peers, state};
use super::skip;

/// On the documented port, as users run it.
fn up(home: &Home) -> Process {
    let node = Process::spawn(home.daisy(&["cluster", "up", "--name", &home.name]));
    node.line("is up");
    node
}

macro_rules! cable {
    ($name:literal) => {
        match Cable::new() {
            Ok(cable) => cable,
            Err(why) => skip!($name, why),
        }
    };
}

#[test]
fn two_nodes_on_a_cable_see_each_other_and_pair_by_code() {
    let cable = cable!("a cable");
    let (alpha, beta) = cable.homes();
    let (_a, _b) = (up(&alpha), up(&beta));
    let seen = await_state(&alpha, "beta", "unpaired", Duration::from_secs(2));
    await_state(&beta, "alpha", "unpaired", Duration::from_secs(2));
    println!("seen after {seen:?}");
    let view = peers(&alpha);
    let row = &view["peers"][0];
    let address = row["address"].as_str().expect("an address");
    assert!(address.starts_with("[fe80::b%") && address.ends_with("]:51738"), "{row}");
    assert_eq!((&row["paired"], &row["interface"]), (&false.into(), &"cablea".into()), "{row}");
    assert_eq!(row["remedy"], "daisy cluster pair");
    assert_eq!(row["version"].as_str(), Some(concat!("daisy ", env!("CARGO_PKG_VERSION"))));

    pair(&alpha, &beta);
    await_state(&alpha, "beta", "ready", Duration::from_secs(3));
    await_state(&beta, "alpha", "ready", Duration::from_secs(3));
    let fastest = (0..5).map(|_| {
        let asked = Instant::now();
        peers(&alpha);
        asked.elapsed()
    });
    let fastest = fastest.min().expect("five");
    assert!(fastest < Duration::from_millis(200), "{fastest:?}");
    let text = alpha.daisy(&["cluster", "peers"]).output().expect("runs").stdout;
    let text = String::from_utf8(text).expect("text");
    assert!(text.starts_with("NAME") && text.contains("beta") && text.contains("ready"), "{text}");

    // Down says goodbye: gone from the list of those who do not know it, kept by those who do.
    let down = beta.daisy(&["cluster", "down"]).output().expect("runs");
    assert!(down.status.success(), "{down:?}");
    await_state(&alpha, "beta", "gone", Duration::from_secs(2));
    let row = &peers(&alpha)["peers"][0];
    assert!(row["reason"].is_string() && row["age_ms"].is_number(), "{row}");
    let unpaired = alpha.daisy(&["cluster", "unpair", "beta"]).output().expect("runs");
    assert!(unpaired.status.success(), "{unpaired:?}");
    await_state(&alpha, "beta", "absent", Duration::from_secs(1));
}

#[test]
fn paired_nodes_serve_without_an_address_and_unpairing_ends_their_ranks() {
    let cable = cable!("serve over a cable");
    let (alpha, beta) = cable.homes();
    let (_a, _b) = (up(&alpha), up(&beta));
    await_state(&beta, "alpha", "unpaired", Duration::from_secs(2));
    pair(&alpha, &beta);
    await_state(&alpha, "beta", "ready", Duration::from_secs(3));
    let model = Endless::new();
    let serve = Process::spawn(alpha.daisy(&[
        "cluster",
        "serve",
        "--model",
        model.path(),
        "--port",
        "0",
        "--layers",
        "2,3",
    ]));
    serve.line("is ready, context");
    let line = serve.line("OpenAI endpoint");
    let url = line.rsplit(' ').next().expect("a url").trim_end_matches("/chat/completions");
    let ranks = pids(&serve.output());
    assert_eq!(ranks.len(), 2);
    let short = chat(&alpha, url, "8").wait_with_output().expect("ends");
    assert!(short.status.success() && short.stdout.len() > 1, "{short:?}");

    // With an answer under way: `unpair` ends the connection, the rank there, and the answer.
    let long = chat(&alpha, url, "8000");
    let done = alpha.daisy(&["cluster", "unpair", "beta"]).output().expect("runs");
    assert!(done.status.success(), "{done:?}");
    let unpaired = Instant::now();
    await_gone(ranks[1]);
    serve.line("the pipeline failed");
    assert!(unpaired.elapsed() < Duration::from_secs(3), "{:?}", unpaired.elapsed());
    let long = long.wait_with_output().expect("ends");
    assert!(String::from_utf8_lossy(&long.stderr).contains("beta"), "{long:?}");
    await_state(&alpha, "beta", "unpaired", Duration::from_secs(1));
    await_state(&beta, "alpha", "one-sided", Duration::from_secs(6));
}

#[test]
fn a_vanished_node_is_marked_kept_and_found_again() {
    let cable = cable!("a vanished node");
    let (alpha, beta) = cable.homes();
    let (_a, mut b) = (up(&alpha), up(&beta));
    await_state(&beta, "alpha", "unpaired", Duration::from_secs(2));
    pair(&alpha, &beta);
    await_state(&alpha, "beta", "ready", Duration::from_secs(3));
    b.signal("-9");
    b.child.wait().expect("killed");
    let marked = await_state(&alpha, "beta", "gone", Duration::from_secs(5));
    println!("marked after {marked:?}");
    let row = &peers(&alpha)["peers"][0];
    assert!(row["reason"].is_string() && row["remedy"].is_string(), "{row}");
    let _again = up(&beta);
    await_state(&alpha, "beta", "ready", Duration::from_secs(6));

    // A cable that is pulled is a vanished node too; plugged in again, with another address, it is back.
    cable.b.ip("link set cableb down").expect("down");
    await_state(&alpha, "beta", "gone", Duration::from_secs(6));
    cable.b.ip("link set cableb up").expect("up");
    cable.b.add_address("fe80::b2/64").expect("renumbered");
    await_state(&alpha, "beta", "ready", Duration::from_secs(12));
}

#[test]
fn nodes_find_each_other_with_169_254_only() {
    let cable = cable!("169.254");
    let (alpha, beta) = cable.homes();
    for (machine, addr) in [(&cable.a, "169.254.7.1/16"), (&cable.b, "169.254.7.2/16")] {
        machine.ip(&format!("addr flush dev {}", machine.device)).expect("flushed");
        machine.add_address(addr).expect("added");
    }
    let (_a, _b) = (up(&alpha), up(&beta));
    await_state(&alpha, "beta", "unpaired", Duration::from_secs(2));
    assert_eq!(peers(&alpha)["peers"][0]["address"], "169.254.7.2:51738");
    pair(&beta, &alpha);
    await_state(&alpha, "beta", "ready", Duration::from_secs(3));
}

#[test]
fn without_multicast_an_address_is_enough_on_one_side() {
    let cable = cable!("no multicast");
    let (alpha, beta) = cable.homes();
    cable.a.add_address("10.9.0.1/24").expect("added");
    cable.b.add_address("10.9.0.2/24").expect("added");
    let quiet = |home: &Home, more: &[&str]| {
        let args = ["cluster", "up", "--no-discovery", "--name", &home.name];
        let node = Process::spawn(home.daisy(&[&args[..], more].concat()));
        node.line("is up");
        node
    };
    let (_a, _b) = (quiet(&alpha, &[]), quiet(&beta, &["--peer", "10.9.0.1"]));
    let shown = Process::spawn(alpha.daisy(&["cluster", "pair"]));
    let line = shown.line("daisy cluster pair");
    let code = line.rsplit(' ').next().expect("a code");
    let entered = beta.daisy(&["cluster", "pair", code]).output().expect("runs");
    assert!(entered.status.success(), "{entered:?}");
    await_state(&beta, "alpha", "ready", Duration::from_secs(5));
    // Alpha was told nothing: it knows where beta came from.
    await_state(&alpha, "beta", "ready", Duration::from_secs(5));
}

#[test]
fn a_copied_home_is_detected_and_reset() {
    let cable = cable!("a copied home");
    let (alpha, beta) = cable.homes();
    let id = alpha.id();
    std::fs::copy(alpha.path().join("key"), beta.path().join("key")).expect("copied");
    assert_eq!(beta.id(), id);
    let (_a, b) = (up(&alpha), up(&beta));
    let until = Instant::now() + Duration::from_secs(5);
    let fault = |home: &Home| peers(home)["faults"][0]["message"].as_str().map(str::to_owned);
    let (mut at_a, mut at_b) = (None, None);
    while at_a.is_none() || at_b.is_none() {
        assert!(Instant::now() < until, "not detected: {at_a:?} {at_b:?}");
        (at_a, at_b) = (at_a.or_else(|| fault(&alpha)), at_b.or_else(|| fault(&beta)));
    }
    assert!(at_b.expect("a fault").contains("copied"));
    let hints = peers(&alpha)["faults"][0]["hints"].to_string();
    assert!(hints.contains("reset-identity"), "{hints}");
    let reset = ["cluster", "reset-identity"];
    let refused = beta.daisy(&reset).output().expect("runs");
    assert_eq!(refused.status.code(), Some(1), "its node runs: {refused:?}");
    drop(b);
    let done = beta.daisy(&reset).output().expect("runs");
    assert!(done.status.success(), "{done:?}");
    assert_ne!(beta.id(), id);
    let _b = up(&beta);
    await_state(&alpha, "beta", "unpaired", Duration::from_secs(3));
}

#[test]
fn nobody_there_is_a_finding_with_its_causes() {
    let cable = cable!("nobody");
    let (alpha, beta) = cable.homes();
    let look = |home: &Home| {
        let output = home.daisy(&["cluster", "peers"]).output().expect("runs");
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        String::from_utf8(output.stderr).expect("text")
    };
    let said = look(&alpha);
    for part in ["no node runs on this machine", "cablea (fe80::a)", "_daisy._udp", "firewall"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    // Without a node of its own, the command looks by itself.
    let _b = up(&beta);
    let text = alpha.daisy(&["cluster", "peers"]).output().expect("runs").stdout;
    let text = String::from_utf8(text).expect("text");
    assert!(text.contains("beta") && text.contains("unpaired"), "{text}");
    assert!(look(&beta).contains("no other node was found"));
}

#[test]
fn hostile_multicast_is_bounded_and_a_paired_peer_stays() {
    let cable = cable!("hostile multicast");
    let (alpha, beta) = cable.homes();
    let (a, _b) = (up(&alpha), up(&beta));
    await_state(&alpha, "beta", "unpaired", Duration::from_secs(2));
    pair(&alpha, &beta);
    await_state(&alpha, "beta", "ready", Duration::from_secs(3));
    let before = resident_kib(a.child.id());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hosts/mdns_flood.py");
    let flood = cable.b.run("python3", &[script, "cableb", "30000"]);
    assert!(flood.status.success(), "{flood:?}");
    assert_eq!(state(&alpha, "beta"), "ready");
    let view = peers(&alpha);
    let rows = view["peers"].as_array().expect("rows");
    assert!(rows.len() <= 128, "{} rows", rows.len());
    for row in rows {
        let name = row["name"].as_str().expect("a name");
        assert!(!name.starts_with('-') && !name.chars().any(char::is_control), "{name:?}");
    }
    assert!(view["hidden"].as_u64().expect("a number") > 0, "it was a flood");
    let grown = resident_kib(a.child.id()).saturating_sub(before);
    assert!(grown < 64 << 10, "{grown} KiB more");
    assert!(a.output().lines().count() < 200, "{}", a.output());
    // It works on.
    let model = tiny("llama-f32");
    let serve = Process::spawn(
        alpha.daisy(&["cluster", "serve", "--model", &model, "--port", "0", "--layers", "2,3"]),
    );
    serve.line("is ready, context");
}

fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("alive");
    let line = status.lines().find(|line| line.starts_with("VmRSS")).expect("resident");
    line.split_whitespace().nth(1).expect("a number").parse().expect("a number")
}
