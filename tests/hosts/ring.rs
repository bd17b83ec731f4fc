//! Three machines in a ring, each pair with a cable of its own: the driver sees the link between the two
//! others from outside. And three in a row, where two have no cable.

use super::cluster::{Endless, Home, Ready};
use super::links::{PORT, answer, endpoint};
use super::rig::{Machine, chat, ip, machines};
use super::skip;

/// A cable between two machines, with an address at each end.
fn plug(device: &str, net: &str, ends: [&Machine; 2]) -> Result<(), String> {
    let [a, b] = ends;
    ip(&format!(
        "link add {device} netns {} type veth peer name {device} netns {}",
        a.namespace, b.namespace
    ))?;
    for (machine, end) in [(a, 1), (b, 2)] {
        machine.ip(&format!("addr add {net}.{end}/24 dev {device}"))?;
        machine.ip(&format!("link set {device} up"))?;
    }
    Ok(())
}

#[test]
fn in_a_row_of_three_the_middle_one_passes_hidden_states_back() {
    let [near, far, third] = match machines() {
        Ok(machines) => machines,
        Err(why) => skip!("three machines", why),
    };
    plug("eth0", "10.213.21", [&near, &far]).expect("plugged in");
    plug("eth1", "10.213.22", [&far, &third]).expect("plugged in");
    plug("radio0", "10.213.23", [&near, &third]).expect("in reach");
    let listen = format!("0.0.0.0:{PORT}");
    let node = |name: &str, machine: &Machine| {
        let kinds = "eth0=ethernet,eth1=ethernet,radio0=wifi";
        (Home::new(name).within(&machine.namespace).with_interfaces(kinds), listen.clone())
    };
    let ready = Ready::new(vec![node("near", &near), node("far", &far), node("third", &third)]);
    let peers = ["10.213.21.2", "10.213.23.2"].map(|ip| format!("{ip}:{PORT}"));
    let ready = ready.reached_at(&[&peers[0], &peers[1]]);
    let model = Endless::new();

    let mut serve = ready.serve(model.path(), &["--nodes", "1"]);
    let alone = answer(chat(&ready.homes[0], &endpoint(&serve), "120"));
    serve.signal("-INT");
    assert_eq!(serve.exit_code(), Some(0));

    let mut serve = ready.serve(model.path(), &["--layers", "1,2,2", "--nodes", "far,third"]);
    serve.line("`third` and `near` have no fast link: hidden states between them go over `far`");
    let url = endpoint(&serve);
    let (on_radio, on_cable) = (third.bytes("radio0"), third.bytes("eth1"));
    let hidden = 120 * model.hidden() * 4;
    assert_eq!(answer(chat(&ready.homes[0], &url, "120")), alone);
    assert!(third.bytes("radio0") - on_radio < hidden, "not by radio");
    assert!(third.bytes("eth1") - on_cable > 2 * hidden, "there and back by the cable");
    serve.signal("-INT");
    assert_eq!(serve.exit_code(), Some(0));
}

#[test]
fn a_link_between_two_others_is_watched_and_left_for_a_better_one() {
    let [near, far, third] = match machines() {
        Ok(machines) => machines,
        Err(why) => skip!("three machines", why),
    };
    plug("eth0", "10.213.21", [&near, &far]).expect("plugged in");
    plug("eth1", "10.213.22", [&near, &third]).expect("plugged in");
    plug("radio0", "10.213.23", [&far, &third]).expect("in reach");
    let listen = format!("0.0.0.0:{PORT}");
    let node = |name: &str, machine: &Machine| {
        let kinds = "eth0=ethernet,eth1=ethernet,eth2=ethernet,radio0=wifi";
        (Home::new(name).within(&machine.namespace).with_interfaces(kinds), listen.clone())
    };
    let ready = Ready::new(vec![node("near", &near), node("far", &far), node("third", &third)]);
    let peers = ["10.213.21.2", "10.213.22.2"].map(|ip| format!("{ip}:{PORT}"));
    let ready = ready.reached_at(&[&peers[0], &peers[1]]);
    let model = Endless::new();
    let wanted = ["--layers", "1,2,2", "--nodes", "far,third"];

    // The driver has a cable to both.
    let mut serve = ready.serve(model.path(), &wanted);
    serve.line("`far` and `third` have no fast link: hidden states between them go over `near`");
    let url = endpoint(&serve);
    let on_radio = far.bytes("radio0");
    let over_near = answer(chat(&ready.homes[0], &url, "40"));
    assert!(far.bytes("radio0") - on_radio < 40 * model.hidden() * 4, "not by radio");
    serve.signal("-INT");
    assert_eq!(serve.exit_code(), Some(0));

    let mut serve = ready.serve(model.path(), &[&wanted[..], &["--link", "any"]].concat());
    let url = endpoint(&serve);
    let before = answer(chat(&ready.homes[0], &url, "40"));
    assert_eq!(over_near, before, "the same tokens by either way");
    plug("eth2", "10.213.24", [&far, &third]).expect("plugged in");
    let said = serve.line("hidden states from `far` to `third` go over eth2 now");
    assert!(said.contains("a better link"), "{said}");
    serve.line("the link between `far` and `third` has changed");
    let on_cable = far.bytes("eth2");
    assert_eq!(answer(chat(&ready.homes[0], &url, "40")), before);
    assert!(far.bytes("eth2") > on_cable + 40 * model.hidden() * 4, "it goes over the cable");
    serve.signal("-INT");
    assert_eq!(serve.exit_code(), Some(0));
}
