//! macOS: the commands that every Mac has, by their full paths.

use std::io::Read;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use daisy_proto::{Cable, Facts, Interface};

use super::Addrs;
use crate::doctor::{Firewall, System};
use crate::facts::memory::{Sysctl, VmStat};
use crate::facts::ports::Hardware;
use crate::facts::{
    chips, ifconfig, interfaces as concluded, loops, ports, power, route, thunderbolt,
};

pub(super) fn facts() -> Facts {
    let sysctl = Sysctl::parse(&output("/usr/sbin/sysctl", Sysctl::NAMES));
    let memory_bytes = sysctl.memory_bytes.unwrap_or(0);
    let vm = VmStat::parse(&output("/usr/bin/vm_stat", &[]));
    let pmset = |args: &[&str]| output("/usr/bin/pmset", args);
    Facts {
        memory_bytes,
        available_bytes: vm.map_or(0, |vm| vm.available_bytes(memory_bytes)),
        memory_limit_bytes: None,
        ceiling_percent: None,
        gpu_limit_bytes: sysctl.gpu_limit_bytes(),
        swap_used_bytes: sysctl.swap_used_bytes,
        pressure: sysctl.pressure,
        power: power::parse(&pmset(&["-g", "batt"]), &pmset(&["-g"])),
        memory_bytes_per_s: sysctl
            .chip
            .as_ref()
            .and_then(|chip| chips::memory_bytes_per_s(chip, sysctl.cores)),
        chip: sysctl.chip,
        os: sysctl.os,
    }
}

pub(super) fn interfaces(_addrs: &Addrs) -> Vec<Interface> {
    let blocks = ifconfig::parse(&output("/sbin/ifconfig", &["-v"]));
    let ports = ports::hardware_ports(&hardware_ports());
    concluded::conclude(&blocks, &ports, &receptacles())
}

pub(super) fn cables() -> Vec<Cable> {
    receptacles().into_iter().flat_map(|port| port.cables).collect()
}

pub(super) fn look(system: System, peers: &[SocketAddr]) -> System {
    let firewall = |args: &[&str]| output("/usr/libexec/ApplicationFirewall/socketfilterfw", args);
    let blocks = ifconfig::parse(&output("/sbin/ifconfig", &["-v"]));
    let ports = ports::hardware_ports(&hardware_ports());
    let is_thunderbolt = |device: &str| {
        ports.iter().any(|port| {
            let hardware = port.hardware;
            let leads = matches!(hardware, Hardware::Thunderbolt(_) | Hardware::ThunderboltBridge);
            leads && port.device == device
        })
    };
    let order = output("/usr/sbin/networksetup", &["-listnetworkserviceorder"]);
    let services = ports::services(&order).into_iter();
    let route_to = |addr: &SocketAddr| {
        let ip = addr.ip().to_string();
        let family = if addr.is_ipv4() { "-inet" } else { "-inet6" };
        (*addr, route::parse(&output("/sbin/route", &["-n", "get", family, &ip])))
    };
    System {
        is_mac: true,
        firewall: Firewall::parse(
            &firewall(&["--getglobalstate"]),
            &firewall(&["--getblockall"]),
            &firewall(&["--getappblocked", &system.program]),
        ),
        rings: blocks.iter().filter_map(loops::seen_by_bridge).collect(),
        services_off: services
            .filter(|service| !service.is_enabled && is_thunderbolt(&service.device))
            .collect(),
        routes: peers.iter().map(route_to).collect(),
        ..system
    }
}

fn receptacles() -> Vec<thunderbolt::Receptacle> {
    let json = output("/usr/sbin/system_profiler", &["SPThunderboltDataType", "-json"]);
    thunderbolt::parse(&json).unwrap_or_default()
}

fn hardware_ports() -> String {
    output("/usr/sbin/networksetup", &["-listallhardwareports"])
}

/// What a command prints, whatever its exit code; nothing where it does not end in time.
fn output(program: &str, args: &[&str]) -> String {
    let child = Command::new(program)
        .args(args)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut child) = child else { return String::new() };
    let Some(stdout) = child.stdout.take() else { return String::new() };
    let (done, text) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = stdout.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes);
        let _ = done.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    let text = text.recv_timeout(COMMAND_MAX).unwrap_or_default();
    let _ = child.kill();
    let _ = child.wait();
    text
}

/// `system_profiler` takes seconds when it has not run for a while.
const COMMAND_MAX: Duration = Duration::from_secs(10);
const OUTPUT_BYTES_MAX: u64 = 4 << 20;
