//! The parsers on outputs recorded on many Macs; tests/data/macos/README.md has their sources.

use std::path::Path;

use daisy_proto::{Cable, Interface, LinkKind, Power, Pressure};

use super::ifconfig::IfBlock;
use super::linux::{self, Device, MemInfo};
use super::memory::{Sysctl, VmStat};
use super::ports::{Hardware, Service, hardware_ports, services};
use super::{ifconfig, interfaces, loops, power, route, thunderbolt};

fn recorded(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/macos").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

const GIB: u64 = 1 << 30;

#[test]
fn available_memory_leaves_out_what_nobody_else_can_have() {
    for (name, memory_bytes, available) in [
        ("vm_stat.mini-32g-idle.txt", 32 * GIB, 20_085_211_136),
        ("vm_stat.m4-16g-compressed.txt", 16 * GIB, 4_153_507_840),
        ("vm_stat.intel-4k-pages.txt", 32 * GIB, 32 * GIB - 13_860_122_624),
        ("vm_stat.mini-32g-idle.txt", GIB, 0),
    ] {
        let parsed = VmStat::parse(&recorded(name)).expect(name);
        assert_eq!(parsed.available_bytes(memory_bytes), available, "{name}");
    }
    let whole = recorded("vm_stat.m4-16g-compressed.txt");
    for lost in ["Pages wired down", "Anonymous pages", "Pages occupied by compressor", "page size"]
    {
        assert_eq!(VmStat::parse(&whole.replace(lost, "x")), None, "{lost}");
    }
}

#[test]
fn sysctl_says_what_it_knows() {
    let of = |name: &str| Sysctl::parse(&recorded(name));
    let mini = of("sysctl.mini-m2pro-32g-normal.txt");
    let expected = Sysctl {
        memory_bytes: Some(32 * GIB),
        swap_used_bytes: Some(0),
        pressure: Some(Pressure::Normal),
        wired_limit_bytes: None,
        has_gpu: true,
        chip: Some("Apple M2 Pro".to_owned()),
        cores: None,
        os: Some("macOS 26.5.1 (25F80)".to_owned()),
    };
    assert_eq!(mini, expected);
    assert_eq!(mini.gpu_limit_bytes(), Some(24 * GIB), "0 is the default, not no memory");

    let studio = of("sysctl.studio-m3ultra-512g-wired-limit.txt");
    assert_eq!(studio.gpu_limit_bytes(), Some(448 * GIB));
    assert_eq!(studio.swap_used_bytes, Some(25 << 19));

    let comma = of("sysctl.mbp-24g-comma-locale-warn.txt");
    assert_eq!(comma.swap_used_bytes, Some(112_188 * (1 << 20) / 100));
    assert_eq!(comma.pressure, Some(Pressure::Warning));

    let intel = of("sysctl.intel-no-iogpu.txt");
    assert_eq!((intel.gpu_limit_bytes(), intel.memory_bytes), (None, Some(32 * GIB)));
    assert_eq!(Sysctl::parse("hw.physicalcpu: 16\n").cores, Some(16));
    assert_eq!(Sysctl::parse("sysctl: unknown oid 'x'\n"), Sysctl::default());
    for odd in ["used = ", "used = M", "used = 1,2,3M", "used = 99999999999999999999.00M", "é"] {
        let text = format!("vm.swapusage: total = 1 {odd}  free");
        assert_eq!(Sysctl::parse(&text).swap_used_bytes, None, "{odd}");
    }
}

#[test]
fn power_is_that_of_the_first_line() {
    for (name, on_battery, charge_percent) in [
        ("pmset-batt.laptop-discharging.txt", true, Some(38)),
        ("pmset-batt.laptop-ac-not-charging.txt", false, Some(80)),
        ("pmset-batt.desktop.txt", false, None),
        ("pmset-batt.desktop-ups.txt", true, Some(87)),
    ] {
        for (settings, low_power) in [
            (recorded("pmset-g.mini-desktop-awake.txt"), false),
            (recorded("pmset-g.mbp-m1max-ac-prevented.txt"), false),
            (" lowpowermode         1\n".to_owned(), true),
            (" powermode            1\n".to_owned(), true),
            (" powermode            2\n".to_owned(), false),
        ] {
            let expected = Power { on_battery, charge_percent, low_power };
            assert_eq!(power::parse(&recorded(name), &settings), Some(expected), "{name}");
        }
    }
    assert_eq!(power::parse("", ""), None);
}

#[test]
fn thunderbolt_ports_are_receptacles() {
    let recordings: [(&str, &[(u8, &str)]); 9] = [
        ("mini-m4-tb-bridge", &[(1, "en2"), (2, "en3"), (4, "en4")]),
        ("mini-m4-no-bridge", &[(1, "en2"), (2, "en3"), (4, "en4")]),
        (
            "studio-m3ultra-no-bridge",
            &[(1, "en2"), (2, "en3"), (3, "en4"), (4, "en5"), (5, "en6"), (6, "en7")],
        ),
        ("studio-m4max-tb-bridge-dock-nic", &[(1, "en2"), (2, "en3"), (3, "en4"), (4, "en5")]),
        ("mbp-m5max-tb-bridge", &[(1, "en1"), (2, "en6"), (3, "en2")]),
        ("mbp-m5max-dock-nics", &[(1, "en1"), (2, "en6"), (3, "en2")]),
        ("mbp-m1pro-usb-nic", &[(1, "en1"), (2, "en2"), (3, "en3")]),
        ("air-tb-bridge", &[(1, "en1"), (2, "en2")]),
        ("vm-guest", &[]),
    ];
    for (name, expected) in recordings {
        let ports = hardware_ports(&recorded(&format!("networksetup-hardwareports.{name}.txt")));
        let found: Vec<(u8, &str)> = ports
            .iter()
            .filter_map(|port| match port.hardware {
                Hardware::Thunderbolt(number) => Some((number, port.device.as_str())),
                _ => None,
            })
            .collect();
        assert_eq!(found, expected, "{name}");
        let has_bridge = ports.iter().any(|port| port.hardware == Hardware::ThunderboltBridge);
        assert_eq!(has_bridge, !name.contains("no-bridge") && name != "vm-guest", "{name}");
    }
    let dock = hardware_ports(&recorded("networksetup-hardwareports.mbp-m5max-dock-nics.txt"));
    let of = |device: &str| dock.iter().find(|port| port.device == device).expect(device).hardware;
    for (device, hardware) in [
        ("en0", Hardware::WiFi),
        ("en10", Hardware::Wired),
        ("en11", Hardware::Wired),
        ("en16", Hardware::Wired),
        ("en3", Hardware::DeviceSide),
    ] {
        assert_eq!(of(device), hardware, "{device}");
    }
}

#[test]
fn services_are_found_by_their_device() {
    let of = |name: &str| services(&recorded(&format!("networksetup-serviceorder.{name}.txt")));
    let service = |name: &str, device: &str, is_enabled| Service {
        name: name.to_owned(),
        device: device.to_owned(),
        is_enabled,
    };
    let expected = [
        service("Wi-Fi", "en0", true),
        service("Thunderbolt Ethernet Slot 1, Port 1", "en11", true),
        service("雷雳网桥", "bridge0", true),
        service("Büro (Kabel)", "en10", false),
    ];
    assert_eq!(of("localized-names-and-comma"), expected);
    let vpn = of("mbp-tb-bridge-vpn");
    assert_eq!(vpn.len(), 5, "VPN services have no device");
    assert!(vpn.contains(&service("Thunderbolt Bridge", "bridge0", true)));
    let per_port = of("studio-per-port-disabled-duplicate");
    assert!(per_port.contains(&service("Thunderbolt 6", "en7", false)));
    assert_eq!(per_port.iter().filter(|service| service.device == "en4").count(), 2);
    let renamed = of("mini-renamed-per-port");
    assert!(renamed.contains(&service("EXO Thunderbolt 3", "en4", false)));
    assert!(renamed.iter().all(|service| service.device != "bridge0"));
}

fn bridge(name: &str) -> IfBlock {
    let blocks = ifconfig::parse(&recorded(&format!("ifconfig-{name}.txt")));
    blocks.into_iter().next().expect("a block")
}

#[test]
fn a_bridge_tells_status_addresses_and_neighbours() {
    let two = bridge("bridge0.mini-m4pro-active-two-peers");
    assert_eq!((two.is_active, two.mtu, two.index), (Some(true), 1500, Some(16)));
    assert_eq!(two.members, ["en2", "en3", "en4"]);
    let addrs: Vec<String> = two.addrs.iter().map(|a| format!("{}/{}", a.ip, a.prefix)).collect();
    assert_eq!(addrs, ["fe80::14a1:2:3:a1/64", "169.254.80.10/16"]);
    let learned = |address: &str, member: &str| (address.to_owned(), member.to_owned());
    let expected = [learned("02:00:00:00:00:d1", "en4"), learned("02:00:00:00:00:b1", "en2")];
    assert_eq!(two.learned, expected);

    let jumbo = bridge("bridge0.mini-active-static-mtu9000");
    assert_eq!((jumbo.mtu, jumbo.index, jumbo.addrs[1].prefix), (9000, Some(18), 24));
    let idle = bridge("bridge0.macbook-inactive-no-link");
    assert!(idle.has_flag("UP") && idle.has_flag("RUNNING") && !idle.is_live());
    assert!(ifconfig::parse(&recorded("ifconfig-bridge0.does-not-exist.txt")).is_empty());
    let member = bridge("port.member-en2-active");
    assert!(member.is_live() && member.addrs.is_empty());
}

#[test]
fn a_ring_of_bridges_is_seen() {
    for name in ["bridge0.mini-m4pro-active-two-peers", "bridge0.active-lan-lease"] {
        assert_eq!(loops::seen_by_bridge(&bridge(name)), None);
    }
    let mut itself = bridge("bridge0.mini-m4pro-active-two-peers");
    itself.learned[1].0 = itself.ether.clone().expect("an address");
    assert!(loops::seen_by_bridge(&itself).expect("a ring").contains("itself through en2"));
    let mut twice = bridge("bridge0.mini-m4pro-active-two-peers");
    twice.learned[1].0 = twice.learned[0].0.clone();
    assert!(loops::seen_by_bridge(&twice).expect("a ring").contains("en4 and en2"));

    let cable = |own: &str, peer: &str| Cable {
        receptacle: 1,
        own_domain: own.to_owned(),
        peer_domain: peer.to_owned(),
        gbit_per_s: Some(40),
    };
    let machine = |name: &str, cables: Vec<Cable>| (name.to_owned(), cables);
    let mut three = vec![
        machine("a", vec![cable("a1", "b1")]),
        machine("b", vec![cable("b1", "a1"), cable("b2", "c1")]),
        machine("c", vec![cable("c1", "b2"), cable("c2", "elsewhere")]),
    ];
    assert_eq!(loops::closing_cable(&three), None, "a chain");
    three[0].1.push(cable("a2", "c2"));
    assert_eq!(loops::closing_cable(&three).expect("a ring").1.own_domain, "b2");
    // Two cables between two Macs close a ring as well.
    let two = vec![
        machine("a", vec![cable("a1", "b1"), cable("a2", "b2")]),
        machine("b", vec![cable("b1", "a1"), cable("b2", "a2")]),
    ];
    assert_eq!(loops::closing_cable(&two).expect("a ring").0, "a");
}

fn receptacles(name: &str) -> Vec<thunderbolt::Receptacle> {
    thunderbolt::parse(&recorded(&format!("spthunderbolt.{name}.json"))).expect(name)
}

type CableRow = (u8, &'static str, &'static str, u16);

/// Receptacle, own and peer domain by their first and last characters, speed.
fn cables(name: &str) -> Vec<(u8, String, String, u16)> {
    let short = |uuid: &str| format!("{}{}", &uuid[..2], &uuid[uuid.len() - 2..]);
    let cables = receptacles(name).into_iter().flat_map(|port| port.cables);
    let row = |cable: Cable| {
        let ends = (short(&cable.own_domain), short(&cable.peer_domain));
        (cable.receptacle, ends.0, ends.1, cable.gbit_per_s.expect("a speed"))
    };
    cables.map(row).collect()
}

#[test]
fn a_cable_leads_to_whoever_has_a_domain() {
    let recordings: [(&str, &[CableRow]); 11] = [
        ("mini-m4pro-peer-and-display", &[(2, "AA01", "EE01", 40)]),
        ("mbp-m5max-to-studio-m3ultra", &[(1, "FF00", "CC01", 80)]),
        ("studio-m3ultra-to-mbp-m5max", &[(2, "CC01", "FF00", 80)]),
        ("mbp-m5max-hub-and-peer", &[(2, "BB01", "DD01", 80)]),
        ("mbp-m5max-drive-and-peer", &[(2, "DD01", "BB01", 80)]),
        (
            "studio-m3ultra-two-links-one-behind-dock",
            &[(3, "1102", "2202", 40), (6, "1105", "2201", 80)],
        ),
        ("mbp-m4max-two-links", &[(2, "2201", "1105", 80), (3, "2202", "1102", 40)]),
        ("desktop-tb4-two-peers", &[(2, "3301", "5500", 40), (3, "3302", "4401", 40)]),
        ("mbp-m1pro-nothing-x1", &[]),
        ("mini-m4-base-bus-gap-named-ios", &[]),
        ("vm-no-hardware", &[]),
    ];
    for (name, expected) in recordings {
        let found = cables(name);
        let mut found: Vec<_> = found
            .iter()
            .map(|(n, own, peer, speed)| (*n, own.as_str(), peer.as_str(), *speed))
            .collect();
        found.sort_unstable();
        let mut expected = expected.to_vec();
        expected.sort_unstable();
        assert_eq!(found, expected, "{name}");
    }
    let numbers = |name: &str| receptacles(name).iter().map(|port| port.number).collect::<Vec<_>>();
    assert_eq!(numbers("mini-m4-base-bus-gap-named-ios"), [1, 2, 4]);
    assert_eq!(numbers("vm-no-hardware"), [0_u8; 0]);
    assert_eq!(numbers("bus-without-domain-uuid").len(), 2);
    let free = receptacles("mbp-m1pro-nothing-x1");
    assert!(free.iter().all(|port| !port.is_connected && port.gbit_per_s == Some(40)));
    let display = receptacles("mini-m4pro-peer-and-display");
    assert!(!display[0].is_connected, "0x7 is no link");
    for odd in ["", "{}", "[]", "{\"SPThunderboltDataType\": 1}"] {
        assert_eq!(thunderbolt::parse(odd), None, "{odd}");
    }
}

/// Name and kind of each interface that is up.
fn kinds(blocks: &str, ports: &str, json: Option<&str>) -> Vec<(String, LinkKind)> {
    let blocks = ifconfig::parse(&recorded(&format!("ifconfig-all.{blocks}.txt")));
    let ports = hardware_ports(&recorded(&format!("networksetup-hardwareports.{ports}.txt")));
    let receptacles = json.map(receptacles).unwrap_or_default();
    let found = interfaces::conclude(&blocks, &ports, &receptacles);
    found.into_iter().map(|Interface { device, kind, .. }| (device.name, kind)).collect()
}

#[test]
fn kinds_come_from_hardware_and_never_from_names() {
    let of = |rows: &[(&str, LinkKind)]| -> Vec<(String, LinkKind)> {
        rows.iter().map(|(name, kind)| ((*name).to_owned(), *kind)).collect()
    };
    let mbp =
        kinds("mbp-m5max-tb-bridge-vm-vpn", "mbp-m5max-tb-bridge", Some("mbp-m5max-hub-and-peer"));
    let expected = [
        ("lo0", LinkKind::Loopback),
        ("en0", LinkKind::WiFi),
        // Only the cable of the live member counts: en6, receptacle 2.
        ("bridge0", LinkKind::ThunderboltBridge { gbit_per_s: Some(80) }),
        ("awdl0", LinkKind::Unknown),
        ("llw0", LinkKind::Unknown),
        ("utun0", LinkKind::Tunnel),
        ("utun2", LinkKind::Tunnel),
        ("bridge100", LinkKind::VirtualBridge),
    ];
    assert_eq!(mbp, of(&expected));
    let studio = kinds(
        "studio-m3ultra-two-links-no-bridge",
        "studio-m3ultra-no-bridge",
        Some("studio-m3ultra-two-links-one-behind-dock"),
    );
    let expected = [
        ("lo0", LinkKind::Loopback),
        ("en4", LinkKind::ThunderboltPort { gbit_per_s: Some(40) }),
        ("en7", LinkKind::ThunderboltPort { gbit_per_s: Some(80) }),
        ("en1", LinkKind::WiFi),
        ("utun4", LinkKind::Tunnel),
    ];
    assert_eq!(studio, of(&expected));
    for ports in ["mini-m4-tb-bridge", "mini-m4-no-bridge"] {
        let mini = kinds("mini-m4-10g-wifi-usb-no-tb-link", ports, None);
        let kind = |name: &str| mini.iter().find(|(known, _)| known == name).map(|(_, kind)| *kind);
        assert_eq!(kind("en0"), Some(LinkKind::Ethernet { mbit_per_s: Some(10_000) }));
        assert_eq!(kind("en1"), Some(LinkKind::WiFi));
        assert_eq!(kind("bridge0"), None, "no cable, no address");
    }
}

#[test]
fn a_foreign_member_makes_no_thunderbolt_bridge() {
    let ports = hardware_ports(&recorded("networksetup-hardwareports.mini-m4-tb-bridge.txt"));
    for (name, expected) in [
        ("bridge100.docker-desktop-vmenet", LinkKind::VirtualBridge),
        ("bridge100.vm-member-en9", LinkKind::VirtualBridge),
        ("bridge0.mini-m4pro-active-two-peers", LinkKind::ThunderboltBridge { gbit_per_s: None }),
    ] {
        let block = bridge(name);
        let kind = interfaces::kind(&block, std::slice::from_ref(&block), &ports, &[]);
        assert_eq!(kind, expected, "{name}");
    }
    // Without one name of a port, as on a Mac in another language.
    let verbose = ifconfig::parse(&recorded("ifconfig-verbose.ip-over-thunderbolt-and-wifi.txt"));
    assert_eq!((verbose[0].index, verbose[1].index), (Some(9), Some(11)));
    let kinds: Vec<_> =
        verbose.iter().map(|block| interfaces::kind(block, &verbose, &[], &[])).collect();
    assert_eq!(kinds, [LinkKind::ThunderboltPort { gbit_per_s: None }, LinkKind::WiFi]);
}

#[test]
fn a_route_is_judged_by_interface_and_expiry() {
    for (name, expected) in [
        ("default-vpn-no-gateway", Some(("utun4", false, false))),
        ("default-wifi", Some(("en0", false, false))),
        ("linklocal-bridge0", Some(("bridge0", false, false))),
        ("linklocal-wrong-interface-stale", Some(("en0", false, true))),
        ("reject-same-subnet", Some(("en0", true, true))),
        ("not-in-table", None),
    ] {
        let route = route::parse(&recorded(&format!("route-get.{name}.txt")));
        let row = route.as_ref().map(|r| (r.interface.as_str(), r.is_rejected, r.is_stale));
        assert_eq!(row, expected, "{name}");
    }
    let wifi = route::parse(&recorded("route-get.default-wifi.txt")).expect("a route");
    assert_eq!(wifi.gateway.as_deref(), Some("192.168.1.1"));
}

#[test]
fn linux_says_its_memory_and_what_its_devices_are() {
    let text = "MemTotal:       16374584 kB\nMemFree:          1 kB\nMemAvailable:   12000000 kB\n\
                SwapTotal:       2097148 kB\nSwapFree:        2000000 kB\n";
    let expected = MemInfo {
        memory_bytes: 16_374_584 * 1024,
        available_bytes: 12_000_000 * 1024,
        swap_used_bytes: Some(97_148 * 1024),
    };
    assert_eq!(MemInfo::parse(text), Some(expected));
    assert_eq!(MemInfo::parse("MemTotal: many kB\n"), None);
    let cpuinfo = "processor\t: 0\nmodel name\t: AMD EPYC\nmodel name\t: AMD EPYC\n";
    assert_eq!(linux::chip(cpuinfo).as_deref(), Some("AMD EPYC"));
    let release = "NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 13 (trixie)\"\n";
    assert_eq!(linux::os(release).as_deref(), Some("Debian GNU/Linux 13 (trixie)"));

    let ether = || Device { hardware_type: Some(1), ..Device::default() };
    let thunderbolt = || "thunderbolt-net".to_owned();
    let bridge =
        |member_drivers| Device { devtype: Some("bridge".to_owned()), member_drivers, ..ether() };
    for (device, expected) in [
        (ether(), LinkKind::Ethernet { mbit_per_s: None }),
        (
            Device { mbit_per_s: Some(2500), ..ether() },
            LinkKind::Ethernet { mbit_per_s: Some(2500) },
        ),
        (Device { hardware_type: Some(772), ..ether() }, LinkKind::Loopback),
        (Device { has_wireless: true, ..ether() }, LinkKind::WiFi),
        (Device { devtype: Some("wlan".to_owned()), ..ether() }, LinkKind::WiFi),
        (
            Device { driver: Some(thunderbolt()), ..ether() },
            LinkKind::ThunderboltPort { gbit_per_s: None },
        ),
        (bridge(vec!["r8169".to_owned()]), LinkKind::VirtualBridge),
        (bridge(vec![thunderbolt()]), LinkKind::ThunderboltBridge { gbit_per_s: None }),
        (Device { has_tun_flags: true, ..ether() }, LinkKind::Tunnel),
        (Device { hardware_type: Some(65_534), ..Device::default() }, LinkKind::Tunnel),
    ] {
        assert_eq!(linux::kind(&device), expected, "{device:?}");
    }
    for (device, expected) in [
        ("wlan9", Some(LinkKind::WiFi)),
        ("br1", Some(LinkKind::ThunderboltBridge { gbit_per_s: None })),
        ("br", None),
        ("x", None),
    ] {
        assert_eq!(linux::given_kind("wlan9=wifi, br1=thunderbolt,x=y,z", device), expected);
    }
}
