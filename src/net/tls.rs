//! TLS 1.3 between keys: raw public keys (RFC 7250) on both sides, each pinned.
//!
//! There is no authority, no name and no certificate: a peer is its Ed25519 public key, and whether
//! that key is welcome is one question to the caller, asked during the handshake on both sides.
//! Nothing is remembered between connections (no tickets, no resumption, no early data), so a key
//! that is no longer trusted cannot come back through an old session.
//!
//! This module knows neither nodes nor ranks. Start at [`KeyPair`], then [`Pin`].

use std::fmt;
use std::sync::{Arc, LazyLock, OnceLock};

use aws_lc_rs::encoding::AsDer;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::aws_lc_rs::{self as provider, cipher_suite};
use rustls::crypto::{CryptoProvider, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{
    CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error,
    PeerMisbehaved, ServerConfig, SignatureScheme,
};

/// An Ed25519 key with what TLS needs of it. A node's own, or a rank's for one pipeline.
#[derive(Clone)]
pub struct KeyPair {
    pkcs8: Arc<[u8]>,
    public: [u8; 32],
    certified: Arc<CertifiedKey>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error("the system's random source failed")]
    Random,
    #[error("the key is not an Ed25519 key in PKCS#8")]
    Malformed,
}

impl KeyPair {
    pub fn generate() -> Result<Self, KeyError> {
        let document =
            Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(|_| KeyError::Random)?;
        Self::from_pkcs8(document.as_ref())
    }

    pub fn from_pkcs8(pkcs8: &[u8]) -> Result<Self, KeyError> {
        let pair = Ed25519KeyPair::from_pkcs8(pkcs8).map_err(|_| KeyError::Malformed)?;
        let public = pair.public_key().as_ref().try_into().map_err(|_| KeyError::Malformed)?;
        let spki = pair.public_key().as_der().map_err(|_| KeyError::Malformed)?;
        let signing = provider::sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(pkcs8))
            .map_err(|_| KeyError::Malformed)?;
        let raw = CertificateDer::from(spki.as_ref().to_vec());
        let certified = Arc::new(CertifiedKey::new(vec![raw], signing));
        Ok(Self { pkcs8: pkcs8.into(), public, certified })
    }

    pub fn public(&self) -> [u8; 32] {
        self.public
    }

    /// For handing a one-time key to a process of its own.
    pub fn pkcs8(&self) -> &[u8] {
        &self.pkcs8
    }
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never the private key: this may end up in a log.
        f.debug_struct("KeyPair").field("public", &self.public).finish_non_exhaustive()
    }
}

/// Whether a public key is welcome.
pub(crate) type Trust = Arc<dyn Fn(&[u8; 32]) -> bool + Send + Sync>;

/// One protocol that a listener speaks, and to whom.
#[derive(Clone)]
pub(crate) struct Gate {
    pub alpn: &'static [u8],
    pub trust: Trust,
    /// A closed gate is not there: dialers are told that nobody speaks that protocol.
    pub is_open: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl Gate {
    pub(crate) fn always(alpn: &'static [u8], trust: Trust) -> Self {
        Self { alpn, trust, is_open: Arc::new(|| true) }
    }
}

/// The check of one handshake: asks [`Trust`] and keeps which key the other side showed, so that a
/// refusal can name it.
pub(crate) struct Pin {
    gates: Vec<Gate>,
    /// The gate that a dialer asked for, before it showed its key.
    chosen: OnceLock<usize>,
    shown: OnceLock<Shown>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shown {
    pub key: [u8; 32],
    pub trusted: bool,
    pub alpn: &'static [u8],
}

impl Pin {
    /// For a dial, which knows what it wants to speak.
    pub(crate) fn for_dial(alpn: &'static [u8], trust: Trust) -> Arc<Self> {
        let gates = vec![Gate::always(alpn, trust)];
        Arc::new(Self { gates, chosen: OnceLock::from(0), shown: OnceLock::new() })
    }

    /// For one that comes in: its own first message says through which gate.
    pub(crate) fn for_guest(gates: &[Gate]) -> Arc<Self> {
        let gates = gates.iter().filter(|gate| (gate.is_open)()).cloned().collect();
        Arc::new(Self { gates, chosen: OnceLock::new(), shown: OnceLock::new() })
    }

    fn alpns(&self) -> Vec<Vec<u8>> {
        self.gates.iter().map(|gate| gate.alpn.to_vec()).collect()
    }

    fn choose(&self, hello: &ClientHello<'_>) {
        let Some(mut offered) = hello.alpn() else { return };
        // One dial wants one thing: with two, which of the two checks would count?
        if let (Some(alpn), None) = (offered.next(), offered.next())
            && let Some(gate) = self.gates.iter().position(|gate| gate.alpn == alpn)
        {
            // Set once: a handshake has one first message, and a second one must ask for the same.
            let _ = self.chosen.set(gate);
        }
    }

    /// The key that the other side showed, once it did.
    pub(crate) fn shown(&self) -> Option<Shown> {
        self.shown.get().copied()
    }

    fn check(&self, raw: &CertificateDer<'_>, rest: &[CertificateDer<'_>]) -> Result<(), Error> {
        let key = ed25519_of(raw).filter(|_| rest.is_empty());
        let key = key.ok_or(Error::InvalidCertificate(CertificateError::BadEncoding))?;
        let gate = self.chosen.get().and_then(|chosen| self.gates.get(*chosen));
        let gate = gate.ok_or(Error::NoApplicationProtocol)?;
        let trusted = (gate.trust)(&key);
        // Set once: a handshake shows one key.
        let _ = self.shown.set(Shown { key, trusted, alpn: gate.alpn });
        if trusted {
            Ok(())
        } else {
            Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
        }
    }
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pin").field("shown", &self.shown).finish_non_exhaustive()
    }
}

impl ServerCertVerifier for Pin {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(end_entity, intermediates).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        check_signature(message, cert, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for Pin {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(end_entity, intermediates).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        check_signature(message, cert, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

fn check_signature(
    message: &[u8],
    raw: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, Error> {
    let spki = SubjectPublicKeyInfoDer::from(raw.as_ref());
    let algorithms = &PROVIDER.signature_verification_algorithms;
    verify_tls13_signature_with_raw_key(message, &spki, signed, algorithms)
}

/// The raw key of a listener; on the way it notes which gate the dialer asked for.
#[derive(Debug)]
struct Guarded {
    key: Arc<CertifiedKey>,
    pin: Arc<Pin>,
}

impl ResolvesServerCert for Guarded {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.pin.choose(&hello);
        Some(Arc::clone(&self.key))
    }

    fn only_raw_public_keys(&self) -> bool {
        true
    }
}

/// TLS of one dial over QUIC. `pin` belongs to this dial alone.
pub(crate) fn client(key: &KeyPair, pin: Arc<Pin>) -> Result<Arc<QuicClientConfig>, Error> {
    let config = client_config(key, pin)?;
    QuicClientConfig::try_from(config).map(Arc::new).map_err(|_| no_quic_suite())
}

/// TLS of one dial. `pin` belongs to this dial alone.
pub(crate) fn client_config(key: &KeyPair, pin: Arc<Pin>) -> Result<ClientConfig, Error> {
    let alpns = pin.alpns();
    let mut config = ClientConfig::builder_with_provider(Arc::clone(&PROVIDER))
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(pin)
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(Arc::clone(
            &key.certified,
        ))));
    config.alpn_protocols = alpns;
    config.enable_sni = false;
    config.resumption = Resumption::disabled();
    config.enable_early_data = false;
    Ok(config)
}

/// TLS of one connection that comes in over QUIC. `pin` belongs to it alone.
pub(crate) fn server(key: &KeyPair, pin: Arc<Pin>) -> Result<Arc<QuicServerConfig>, Error> {
    let config = server_config(key, pin)?;
    QuicServerConfig::try_from(config).map(Arc::new).map_err(|_| no_quic_suite())
}

/// TLS of one incoming connection. `pin` belongs to it alone.
pub(crate) fn server_config(key: &KeyPair, pin: Arc<Pin>) -> Result<ServerConfig, Error> {
    let alpns = pin.alpns();
    let guarded = Guarded { key: Arc::clone(&key.certified), pin: Arc::clone(&pin) };
    let mut config = ServerConfig::builder_with_provider(Arc::clone(&PROVIDER))
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(pin)
        .with_cert_resolver(Arc::new(guarded));
    config.alpn_protocols = alpns;
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.max_early_data_size = 0;
    Ok(config)
}

/// The key within an Ed25519 `SubjectPublicKeyInfo` (RFC 8410): a fixed prefix and the 32 bytes.
pub(crate) fn ed25519_of(spki: &CertificateDer<'_>) -> Option<[u8; 32]> {
    spki.as_ref().strip_prefix(&SPKI_PREFIX)?.try_into().ok()
}

fn no_quic_suite() -> Error {
    Error::General("no cipher suite for QUIC's first packets".to_owned())
}

/// AES-128-GCM first: both ends have AES instructions, where `ChaCha20` costs 30 µs more per 12 KiB round
/// trip (measured) and AES-256 buys nothing here. Passed explicitly, since a process-wide default would
/// depend on who asked first.
static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| {
    Arc::new(CryptoProvider {
        cipher_suites: vec![
            cipher_suite::TLS13_AES_128_GCM_SHA256,
            cipher_suite::TLS13_AES_256_GCM_SHA384,
            cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ],
        ..provider::default_provider()
    })
});

const SPKI_PREFIX: [u8; 12] =
    [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_survives_pkcs8_and_its_raw_form() {
        let key = KeyPair::generate().unwrap();
        let again = KeyPair::from_pkcs8(key.pkcs8()).unwrap();
        assert_eq!(key.public(), again.public());
        assert_eq!(ed25519_of(&key.certified.cert[0]), Some(key.public()));
        assert_ne!(key.public(), KeyPair::generate().unwrap().public());
    }

    #[test]
    fn damaged_keys_are_refused() {
        let key = KeyPair::generate().unwrap();
        let pkcs8 = key.pkcs8();
        for bad in [&b""[..], b"junk", &pkcs8[..pkcs8.len() - 1], &pkcs8[1..]] {
            assert_eq!(KeyPair::from_pkcs8(bad).unwrap_err(), KeyError::Malformed);
        }
    }

    #[test]
    fn only_an_ed25519_key_is_a_peer() {
        let key = KeyPair::generate().unwrap();
        let good = key.certified.cert[0].as_ref().to_vec();
        let other_curve = {
            let mut bytes = good.clone();
            bytes[8] = 0x6e;
            bytes
        };
        for bad in [vec![], good[..43].to_vec(), [&good[..], &[0]].concat(), other_curve] {
            assert_eq!(ed25519_of(&CertificateDer::from(bad)), None);
        }
    }
}
