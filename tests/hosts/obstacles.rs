//! What stands between two machines though the cable is in: a firewall, a VPN that owns the addresses, a
//! change of addresses under way.

use super::cluster::{Endless, Home, Ready};
use super::links::{FAST, FAST_NET, PORT, Rig, SLOW, SLOW_NET, answer, endpoint, wifi};
use super::rig::{Machine, chat};
use super::skip;

/// Lets answers in and nothing that begins elsewhere, as people set a firewall up.
fn closes(machine: &Machine, verdict: &str) -> Result<(), String> {
    let rules = format!(
        "add table inet wall; \
         add chain inet wall in {{ type filter hook input priority 0; policy accept; }}; \
         add rule inet wall in iifname {FAST} ct state established,related accept; \
         add rule inet wall in iifname {FAST} meta l4proto udp {verdict}"
    );
    nft(machine, &rules)
}

fn nft(machine: &Machine, rules: &str) -> Result<(), String> {
    let output = machine.run("nft", &[rules]);
    let why = || String::from_utf8_lossy(&output.stderr).trim().to_owned();
    output.status.success().then_some(()).ok_or_else(why)
}

#[test]
fn a_firewall_on_one_end_is_named_and_opening_it_is_enough() {
    let rig = match Rig::new(wifi()) {
        Ok(rig) => rig,
        Err(why) => skip!("a firewall", why),
    };
    for verdict in ["reject", "drop"] {
        if let Err(why) = closes(&rig.far, verdict) {
            skip!("a firewall", why);
        }
        let model = Endless::new();
        let ready = rig.nodes().reached_at(&[&format!("{SLOW_NET}.2:{PORT}")]);
        let mut serve = ready.serve(model.path(), &["--layers", "2,3"]);
        assert_eq!(serve.exit_code(), Some(1), "{}", serve.output());
        let said = serve.output();
        for part in [
            "the link between `near` and `far` cannot carry a model: it is Wi-Fi",
            &format!("hint: {FAST} - {FAST} works from one end only: a firewall"),
        ] {
            assert!(said.contains(part), "{verdict}: no `{part}` in:\n{said}");
        }
        nft(&rig.far, "flush ruleset").expect("opened");
        let mut serve = ready.serve(model.path(), &["--layers", "2,3"]);
        let url = endpoint(&serve);
        let (fast, _) = rig.bytes();
        answer(chat(&ready.homes[0], &url, "20"));
        assert!(rig.bytes().0 > fast + 20 * model.hidden() * 4 * 2, "it goes over the cable");
        serve.signal("-INT");
        assert_eq!(serve.exit_code(), Some(0));
    }
}

#[test]
fn a_vpn_that_owns_the_addresses_is_passed_by() {
    let rig = match Rig::new(wifi()) {
        Ok(rig) => rig,
        Err(why) => skip!("a VPN", why),
    };
    for machine in [&rig.near, &rig.far] {
        for words in [
            "tuntap add dev vpn0 mode tun",
            "addr add 10.99.0.1/8 dev vpn0",
            "link set vpn0 up",
            // Narrower than the cable's own network: by the routes all of it goes into the tunnel.
            &format!("route add {FAST_NET}.0/25 dev vpn0"),
        ] {
            if let Err(why) = machine.ip(words) {
                skip!("a VPN", why);
            }
        }
    }
    let model = Endless::new();
    let kinds = format!("{FAST}=thunderbolt,{SLOW}=wifi");
    let home = |name: &str, machine: &Machine| {
        Home::new(name).within(&machine.namespace).with_interfaces(&kinds)
    };
    let listen = format!("[::]:{PORT}");
    let nodes = vec![(home("near", &rig.near), listen.clone()), (home("far", &rig.far), listen)];
    let ready = Ready::new(nodes).reached_at(&[&format!("{SLOW_NET}.2:{PORT}")]);
    let mut serve = ready.serve(model.path(), &["--layers", "2,3"]);
    let url = endpoint(&serve);
    let (fast, _) = rig.bytes();
    answer(chat(&ready.homes[0], &url, "100"));
    assert!(rig.bytes().0 > fast + 100 * model.hidden() * 4 * 2, "it goes over the cable");
    serve.signal("-INT");
    assert_eq!(serve.exit_code(), Some(0));
}

#[test]
fn an_answer_goes_on_when_the_other_machine_gets_another_address() {
    let rig = match Rig::new(wifi()) {
        Ok(rig) => rig,
        Err(why) => skip!("renumbering", why),
    };
    let model = Endless::new();
    let ready = rig.nodes();
    let mut serve = ready.serve(model.path(), &["--layers", "2,3"]);
    let url = endpoint(&serve);
    let undisturbed = answer(chat(&ready.homes[0], &url, "1500"));
    let begins = rig.bytes().0;
    let disturbed = chat(&ready.homes[0], &url, "1500");
    rig.until("the answer has begun", |(fast, _)| fast > begins + 50_000);
    rig.far.ip(&format!("addr del {FAST_NET}.2/24 dev {FAST}")).expect("gone");
    rig.far.ip(&format!("addr add {FAST_NET}.77/24 dev {FAST}")).expect("another one");
    // Whether they went by this address or by a link-local one, which is also there.
    assert_eq!(answer(disturbed), undisturbed, "not a token is lost or doubled");
    serve.line("the connection to `far` is back");
    answer(chat(&ready.homes[0], &url, "8"));
    serve.signal("-INT");
    assert_eq!(serve.exit_code(), Some(0));
}
