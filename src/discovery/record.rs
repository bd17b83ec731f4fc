//! What a node says of itself by multicast, and how a stranger's record is read. Anyone on the network
//! may write anything there, so a record is refused unless every field is what [`Advert::txt`] could
//! have written. No IO here. Start at [`Advert::parse`].

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use daisy_proto::hello::Hello;
use daisy_proto::{NodeId, NodeName};

/// A node's own words. They prove nothing: a key is proved by a handshake alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advert {
    pub id: NodeId,
    pub name: NodeName,
    /// Program version, as in the control protocol's first message.
    pub build: String,
    pub protocol: u32,
    /// UDP port of the control endpoint.
    pub port: u16,
    /// New at each start of a node: two nodes that show one id with two of these are two machines
    /// with one key.
    pub boot: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    #[error(
        "the field `{0}` is missing, given twice, or not text of at most {VALUE_BYTES_MAX} bytes"
    )]
    Field(&'static str),
    #[error("the field `{0}` has a value that no node writes")]
    Value(&'static str),
    #[error("it stands under another node's name")]
    Label,
}

impl Advert {
    /// The record's fields. No secret and no user's name.
    pub fn txt(&self) -> Vec<(&'static str, String)> {
        vec![
            ("id", self.id.to_string()),
            ("name", self.name.to_string()),
            ("version", self.build.clone()),
            ("protocol", self.protocol.to_string()),
            ("port", self.port.to_string()),
            ("boot", format!("{:016x}", self.boot)),
        ]
    }

    /// Reads a record that stands under `label`, the first part of the service's name. Fields that
    /// this version does not know are left alone.
    pub fn parse(label: &str, fields: &[(&str, Option<&[u8]>)]) -> Result<Self, RecordError> {
        let text = |key: &'static str| {
            // Keys are ASCII in any case, says DNS-SD.
            let looked_at = fields.iter().take(FIELDS_MAX);
            let mut found = looked_at.filter(|(name, _)| name.eq_ignore_ascii_case(key));
            match (found.next(), found.next()) {
                (Some((_, Some(value))), None) if value.len() <= VALUE_BYTES_MAX => {
                    std::str::from_utf8(value).map_err(|_| RecordError::Field(key))
                }
                _ => Err(RecordError::Field(key)),
            }
        };
        let id: NodeId = text("id")?.parse().map_err(|_| RecordError::Value("id"))?;
        if label != id.to_string() {
            return Err(RecordError::Label);
        }
        let protocol = number(text("protocol")?).ok_or(RecordError::Value("protocol"))?;
        let build = text("version")?;
        // The same limits as in the first message of a connection.
        Hello::new(protocol, build).map_err(|_| RecordError::Value("version"))?;
        let boot = text("boot")?;
        let boot = u64::from_str_radix(boot, 16)
            .ok()
            .filter(|number| format!("{number:016x}") == boot)
            .ok_or(RecordError::Value("boot"))?;
        Ok(Self {
            id,
            name: text("name")?.parse().map_err(|_| RecordError::Value("name"))?,
            build: build.to_owned(),
            protocol,
            port: number(text("port")?)
                .filter(|port| *port != 0)
                .ok_or(RecordError::Value("port"))?,
            boot,
        })
    }
}

/// Digits alone: Rust's own parser also takes a plus sign and leading zeros.
fn number<T: std::str::FromStr + ToString>(text: &str) -> Option<T> {
    text.parse::<T>().ok().filter(|number| number.to_string() == text)
}

/// Where a node may be dialled: its port at each address that can belong to another machine, at most
/// [`ADDRS_MAX`] of them. A link-local IPv6 address leads nowhere without its scope.
pub(super) fn candidates(addrs: impl Iterator<Item = (IpAddr, u32)>, port: u16) -> Vec<SocketAddr> {
    let usable = addrs.filter_map(|(ip, scope)| match ip {
        IpAddr::V4(v4) => {
            (!v4.is_unspecified() && !v4.is_loopback() && !v4.is_multicast() && !v4.is_broadcast())
                .then(|| SocketAddr::new(ip, port))
        }
        IpAddr::V6(v6) if v6.is_unicast_link_local() => {
            (scope != 0).then(|| SocketAddrV6::new(v6, port, 0, scope).into())
        }
        IpAddr::V6(v6) => (!v6.is_unspecified()
            && !v6.is_loopback()
            && !v6.is_multicast()
            && v6.to_ipv4_mapped().is_none())
        .then(|| SocketAddr::new(ip, port)),
    });
    let mut addrs: Vec<SocketAddr> = usable.collect();
    addrs.sort_unstable();
    addrs.dedup();
    addrs.truncate(ADDRS_MAX);
    addrs
}

/// As the longest build; names are shorter.
const VALUE_BYTES_MAX: usize = 64;
/// Of a record, the others are not looked at.
const FIELDS_MAX: usize = 32;
/// Of one node: several interfaces with several addresses each.
pub(super) const ADDRS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    type Field = (&'static str, Option<Vec<u8>>);

    fn advert() -> Advert {
        Advert {
            id: NodeId([0xa7; 32]),
            name: NodeName::new("Anna's mini").expect("a name"),
            build: "daisy 0.1.0".to_owned(),
            protocol: 1,
            port: 51738,
            boot: 0xfeed,
        }
    }

    fn fields() -> Vec<Field> {
        let text = |(key, value): (&'static str, String)| (key, Some(value.into_bytes()));
        advert().txt().into_iter().map(text).collect()
    }

    fn parse(fields: &[Field]) -> Result<Advert, RecordError> {
        let borrowed: Vec<_> = fields.iter().map(|(key, value)| (*key, value.as_deref())).collect();
        Advert::parse(&advert().id.to_string(), &borrowed)
    }

    #[test]
    fn what_a_node_writes_reads_back_also_with_more_fields() {
        assert_eq!(parse(&fields()), Ok(advert()));
        let mut more = fields();
        more.push(("colour", Some(vec![0xff; 200])));
        more.push(("flag", None));
        assert_eq!(parse(&more), Ok(advert()));
    }

    #[test]
    fn a_record_says_nothing_of_the_user() {
        for (key, value) in advert().txt() {
            assert!(key.len() + 1 + value.len() <= 255, "fits a TXT string");
        }
        let keys: Vec<_> = advert().txt().into_iter().map(|(key, _)| key).collect();
        assert_eq!(keys, ["id", "name", "version", "protocol", "port", "boot"]);
    }

    #[test]
    fn hostile_values_are_refused_by_field() {
        let huge = "x".repeat(65);
        let cases: &[(&'static str, &[u8])] = &[
            ("name", b"-rf"),
            ("name", b"--home=/etc"),
            ("name", b"\x1b[2J"),
            ("name", "\u{202e}abc".as_bytes()),
            ("name", b"a\nb"),
            ("name", b"\xff\xfe"),
            ("name", b""),
            ("name", huge.as_bytes()),
            ("version", b"\x1b[31m"),
            ("version", huge.as_bytes()),
            ("id", b"abc"),
            ("id", b"../../etc/passwd"),
            ("protocol", b"-1"),
            ("protocol", b"+1"),
            ("protocol", b"99999999999"),
            ("port", b"0"),
            ("port", b"65536"),
            ("port", b"051738"),
            ("boot", b"1"),
            ("boot", b"zzzzzzzzzzzzzzzz"),
        ];
        for (key, value) in cases {
            let mut bad = fields();
            let field = bad.iter_mut().find(|(name, _)| name == key).expect("a field");
            field.1 = Some(value.to_vec());
            let error = parse(&bad).expect_err("must be refused");
            assert!(error.to_string().contains(key), "{key} {value:?}: {error}");
        }
    }

    #[test]
    fn missing_empty_and_doubled_fields_are_refused() {
        for at in 0..fields().len() {
            let key = fields()[at].0;
            let mut missing = fields();
            missing.remove(at);
            assert_eq!(parse(&missing), Err(RecordError::Field(key)));
            let mut empty = fields();
            empty[at].1 = None;
            assert_eq!(parse(&empty), Err(RecordError::Field(key)));
            let mut doubled = fields();
            doubled.push(fields()[at].clone());
            assert_eq!(parse(&doubled), Err(RecordError::Field(key)));
        }
        // Beyond what is looked at, a field is not there.
        let mut flood: Vec<Field> = vec![("x", None); FIELDS_MAX];
        flood.extend(fields());
        assert!(parse(&flood).is_err());
    }

    #[test]
    fn a_record_under_another_name_is_refused() {
        let fields = fields();
        let borrowed: Vec<_> = fields.iter().map(|(key, value)| (*key, value.as_deref())).collect();
        let other = NodeId([1; 32]).to_string();
        assert_eq!(Advert::parse(&other, &borrowed), Err(RecordError::Label));
    }

    #[test]
    fn only_addresses_of_other_machines_are_dialled() {
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        let addrs = [
            ("fe80::1", 7, Some("[fe80::1%7]:9")),
            ("fe80::2", 0, None),
            ("169.254.1.2", 7, Some("169.254.1.2:9")),
            ("fd00::1", 7, Some("[fd00::1]:9")),
            ("127.0.0.1", 1, None),
            ("::1", 1, None),
            ("0.0.0.0", 0, None),
            ("255.255.255.255", 0, None),
            ("224.0.0.251", 0, None),
            ("ff02::fb", 7, None),
            ("::ffff:127.0.0.1", 7, None),
        ];
        for (text, scope, expected) in addrs {
            let found = candidates([(ip(text), scope)].into_iter(), 9);
            let found: Vec<_> = found.iter().map(ToString::to_string).collect();
            assert_eq!(found, expected.into_iter().collect::<Vec<_>>(), "{text}");
        }
        let many = (0..=255).map(|n| (IpAddr::from([10, 0, 0, n]), 0));
        assert_eq!(candidates(many, 9).len(), ADDRS_MAX);
    }
}
