//! Socket addresses on the wire. serde's own form leaves out the scope of an IPv6 address, and
//! without it a link-local address leads nowhere. A scope means something on one machine only: a
//! node that gets an address from another one puts its own interface's scope in.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Serialize, Deserialize)]
struct Wire {
    ip: IpAddr,
    port: u16,
    /// 0 for none, and for IPv4.
    scope: u32,
}

impl From<SocketAddr> for Wire {
    fn from(addr: SocketAddr) -> Self {
        let scope = match addr {
            SocketAddr::V4(_) => 0,
            SocketAddr::V6(v6) => v6.scope_id(),
        };
        Self { ip: addr.ip(), port: addr.port(), scope }
    }
}

impl From<Wire> for SocketAddr {
    fn from(wire: Wire) -> Self {
        match wire.ip {
            IpAddr::V4(ip) => (ip, wire.port).into(),
            IpAddr::V6(ip) => SocketAddrV6::new(ip, wire.port, 0, wire.scope).into(),
        }
    }
}

/// For `#[serde(with = "crate::addr::one")]`.
pub(crate) mod one {
    use super::{Deserialize, Deserializer, Serialize, Serializer, SocketAddr, Wire};

    pub fn serialize<S: Serializer>(addr: &SocketAddr, out: S) -> Result<S::Ok, S::Error> {
        Wire::from(*addr).serialize(out)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<SocketAddr, D::Error> {
        Wire::deserialize(input).map(Into::into)
    }
}

/// For `#[serde(with = "crate::addr::many")]`.
pub(crate) mod many {
    use super::{Deserialize, Deserializer, Serializer, SocketAddr, Wire};

    pub fn serialize<S: Serializer>(addrs: &[SocketAddr], out: S) -> Result<S::Ok, S::Error> {
        out.collect_seq(addrs.iter().map(|addr| Wire::from(*addr)))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<Vec<SocketAddr>, D::Error> {
        Ok(Vec::<Wire>::deserialize(input)?.into_iter().map(Into::into).collect())
    }
}

/// For `#[serde(with = "crate::addr::option")]`.
pub(crate) mod option {
    use super::{Deserialize, Deserializer, Serialize, Serializer, SocketAddr, Wire};

    // serde hands the field over as it is.
    #[expect(clippy::ref_option, reason = "the signature is serde's")]
    pub fn serialize<S: Serializer>(addr: &Option<SocketAddr>, out: S) -> Result<S::Ok, S::Error> {
        addr.map(Wire::from).serialize(out)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        input: D,
    ) -> Result<Option<SocketAddr>, D::Error> {
        Ok(Option::<Wire>::deserialize(input)?.map(Into::into))
    }
}
