//! Names and order of a Mac's network ports: `networksetup -listallhardwareports` and
//! `-listnetworkserviceorder`.
//!
//! A port's number is that of its receptacle and may skip some; neither the order of the list nor the
//! number of a device means anything. Names of services are free text in any language.

/// What hardware stands behind a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    pub device: String,
    pub hardware: Hardware,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hardware {
    /// With the number of its receptacle.
    Thunderbolt(u8),
    ThunderboltBridge,
    WiFi,
    /// Wired, also in a dock (`Thunderbolt Ethernet Slot 1` is one) or on USB.
    Wired,
    /// The device side of a USB-C port: it leads nowhere.
    DeviceSide,
}

/// The ports of `networksetup -listallhardwareports`.
pub fn hardware_ports(text: &str) -> Vec<Port> {
    let mut ports = Vec::new();
    let mut name = None;
    for line in text.lines() {
        if let Some(port) = line.strip_prefix("Hardware Port: ") {
            name = Some(port);
        } else if let Some(device) = line.strip_prefix("Device: ")
            && let Some(name) = name.take()
        {
            ports.push(Port { device: device.to_owned(), hardware: hardware(name, device) });
        }
    }
    ports
}

fn hardware(name: &str, device: &str) -> Hardware {
    let receptacle = name.strip_prefix("Thunderbolt ").and_then(|number| number.parse().ok());
    match (name, receptacle) {
        (_, Some(receptacle)) => Hardware::Thunderbolt(receptacle),
        ("Thunderbolt Bridge", _) => Hardware::ThunderboltBridge,
        ("Wi-Fi" | "AirPort", _) => Hardware::WiFi,
        _ if name == format!("Ethernet Adapter ({device})") => Hardware::DeviceSide,
        _ => Hardware::Wired,
    }
}

/// A network service as System Settings lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    pub name: String,
    pub device: String,
    pub is_enabled: bool,
}

/// The services of `networksetup -listnetworkserviceorder` that have a device; VPN clients have none.
pub fn services(text: &str) -> Vec<Service> {
    let mut services = Vec::new();
    let mut title = None;
    for line in text.lines() {
        if let Some(port) = line.strip_prefix("(Hardware Port: ") {
            let device =
                port.rsplit_once(", Device: ").and_then(|(_, rest)| rest.strip_suffix(')'));
            if let (Some((mark, name)), Some(device)) = (title.take(), device)
                && !device.is_empty()
            {
                let (name, device) = (str::to_owned(name), device.to_owned());
                services.push(Service { name, device, is_enabled: mark != "*" });
            }
        } else if let Some((mark, name)) =
            line.strip_prefix('(').and_then(|rest| rest.split_once(") "))
        {
            title = Some((mark, name));
        }
    }
    services
}
