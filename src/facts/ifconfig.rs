//! Interfaces of a Mac as `ifconfig` prints them, `-v` or not.
//!
//! `UP,RUNNING` says nothing about a cable; the status line does, where there is one. A bridge has one
//! status for all its cables: its members' own lines tell which of them is live.

use core::net::IpAddr;

use daisy_proto::Address;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IfBlock {
    pub name: String,
    pub flags: Vec<String>,
    pub mtu: u32,
    /// Also the scope of its link-local addresses; printed by `-v` or with one of those.
    pub index: Option<u32>,
    pub addrs: Vec<Address>,
    /// Its own hardware address.
    pub ether: Option<String>,
    pub members: Vec<String>,
    /// Hardware addresses that a bridge has learned, each with the member behind which it is.
    pub learned: Vec<(String, String)>,
    pub media: Option<String>,
    /// None where no status is printed: loopback, tunnels, interfaces that are down.
    pub is_active: Option<bool>,
    /// Printed by `-v` in every language: `IP over Thunderbolt`, `Wi-Fi`.
    pub medium: Option<String>,
}

impl IfBlock {
    pub fn has_flag(&self, flag: &str) -> bool {
        self.flags.iter().any(|known| known == flag)
    }

    /// Something could come through now.
    pub fn is_live(&self) -> bool {
        self.has_flag("UP") && self.is_active.unwrap_or(true)
    }

    /// Of a wired link, as in `autoselect (10Gbase-T <full-duplex>)`.
    pub fn mbit_per_s(&self) -> Option<u32> {
        let name = self.media.as_deref()?.split_once('(')?.1;
        let digits: String = name.chars().take_while(char::is_ascii_digit).collect();
        let number: u32 = digits.parse().ok()?;
        Some(if name[digits.len()..].starts_with('G') { number * 1000 } else { number })
    }
}

/// Every interface of an `ifconfig` output.
pub fn parse(text: &str) -> Vec<IfBlock> {
    let mut blocks: Vec<IfBlock> = Vec::new();
    let mut in_address_cache = false;
    for line in text.lines() {
        if !line.starts_with([' ', '\t']) {
            blocks.extend(header(line));
            in_address_cache = false;
            continue;
        }
        let Some(block) = blocks.last_mut() else { continue };
        let words: Vec<&str> = line.split_whitespace().collect();
        in_address_cache &= words.first().is_some_and(|word| is_hardware_address(word));
        match &words[..] {
            ["Address", "cache:", ..] => in_address_cache = true,
            [learned, _vlan, member, ..] if in_address_cache => {
                block.learned.push((normal(learned), (*member).to_owned()));
            }
            ["inet", ip, rest @ ..] => block.addrs.extend(v4(ip, rest)),
            ["inet6", ip, rest @ ..] => {
                block.addrs.extend(v6(ip, rest));
                block.index = after(rest, "scopeid").and_then(hexadecimal).or(block.index);
            }
            ["ether", address, ..] => block.ether = Some(normal(address)),
            ["member:", member, ..] => block.members.push((*member).to_owned()),
            ["media:", rest @ ..] => block.media = Some(rest.join(" ")),
            ["status:", status, ..] => block.is_active = Some(*status == "active"),
            ["type:", rest @ ..] => block.medium = Some(rest.join(" ")),
            _ => {}
        }
    }
    blocks
}

/// `en0: flags=8863<UP,…> mtu 1500 index 11`. Anything else, as an error message, is no interface.
fn header(line: &str) -> Option<IfBlock> {
    let (name, rest) = line.split_once(": flags=")?;
    let flags = rest.split_once('<')?.1.split_once('>')?.0;
    let words: Vec<&str> = rest.split_whitespace().collect();
    Some(IfBlock {
        name: name.to_owned(),
        flags: flags.split(',').filter(|flag| !flag.is_empty()).map(str::to_owned).collect(),
        mtu: after(&words, "mtu").and_then(|mtu| mtu.parse().ok()).unwrap_or(0),
        index: after(&words, "index").and_then(|index| index.parse().ok()),
        ..IfBlock::default()
    })
}

fn v4(ip: &str, rest: &[&str]) -> Option<Address> {
    let ip: IpAddr = ip.parse().ok()?;
    let mask = after(rest, "netmask").and_then(hexadecimal)?;
    Some(Address { ip, prefix: u8::try_from(mask.leading_ones()).ok()? })
}

fn v6(ip: &str, rest: &[&str]) -> Option<Address> {
    let bare = ip.split('%').next()?;
    let prefix = after(rest, "prefixlen")?.parse().ok()?;
    Some(Address { ip: bare.parse().ok()?, prefix })
}

fn after<'a>(words: &[&'a str], name: &str) -> Option<&'a str> {
    let at = words.iter().position(|word| *word == name)?;
    words.get(at + 1).copied()
}

fn hexadecimal(text: &str) -> Option<u32> {
    u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

fn is_hardware_address(word: &str) -> bool {
    word.split(':').count() == 6 && word.chars().all(|c| c == ':' || c.is_ascii_hexdigit())
}

/// The address cache leaves leading zeros out, the ether line does not.
fn normal(address: &str) -> String {
    let parts: Vec<String> = address.split(':').map(|part| format!("{part:0>2}")).collect();
    parts.join(":")
}
