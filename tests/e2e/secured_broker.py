"""A real broker that lets in only who has a password or a certificate, for the options of ``kafka.options``."""

from __future__ import annotations

import subprocess
from pathlib import Path

from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from viewkeeper.local.broker import HOST, Broker, free_ports

USER, PASSWORD = "keeper", 'p"ss; \\w=ört'
"""What a login must quote."""

_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required;"


class SecuredBroker(Broker):
    """Beside its own door it has ``sasl``, for passwords, and ``tls``, for certificates and passwords."""

    def __init__(self, directory: Path):
        super().__init__(directory)
        self.keys = self.directory / "keys"
        self.sasl = self.tls = ""

    def _write_settings(self) -> Path:
        self.keys.mkdir(exist_ok=True)
        _make_keys(self.keys)
        settings, port = super()._write_settings(), free_ports()
        self.sasl, self.tls = f"{HOST}:{port}", f"{HOST}:{port + 1}"
        text = settings.read_text()
        doors = f",SASL://{self.sasl},TLS://{self.tls}"
        lines = [f"{line}{doors}" if "listeners=PLAINTEXT" in line else line for line in text.splitlines()]
        protocols = ",SASL:SASL_PLAINTEXT,TLS:SASL_SSL"
        lines = [line + protocols if line.startswith("listener.security") else line for line in lines]
        quoted = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
        login = f'{_PLAIN} user_{USER}="{quoted}";'
        for door in ("sasl", "tls"):
            lines += [
                f"listener.name.{door}.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
                f"listener.name.{door}.plain.sasl.jaas.config={_in_properties(login)}",
                f"listener.name.{door}.scram-sha-256.sasl.jaas.config={_SCRAM}",
                f"listener.name.{door}.scram-sha-512.sasl.jaas.config={_SCRAM}",
            ]
        lines += [
            "ssl.keystore.type=PEM",
            f"ssl.keystore.location={self.keys / 'server.pem'}",
            "ssl.truststore.type=PEM",
            f"ssl.truststore.location={self.keys / 'ca.pem'}",
            "listener.name.tls.ssl.client.auth=required",
        ]
        settings.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return settings

    def start(self) -> Broker:
        super().start()
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            wanted = UserScramCredentialUpsertion(USER, ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())
            for done in admin.alter_user_scram_credentials([wanted]).values():
                done.result()
        return self


def _in_properties(value: str) -> str:
    """A value as Java's properties want it: in ASCII, each backslash doubled."""
    return "".join(c if ord(c) < 128 else f"\\u{ord(c):04x}" for c in value.replace("\\", "\\\\"))


def _make_keys(folder: Path) -> None:
    """A certificate authority of our own, and a key and a certificate for the broker and for its client."""
    if (folder / "server.pem").exists():
        return
    _openssl(folder, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=ca",
             "-keyout", "ca.key", "-out", "ca.pem")  # fmt: skip
    (folder / "names").write_text(f"subjectAltName=IP:{HOST}\n")
    for name in ("server", "client"):
        _openssl(folder, "req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}",
                 "-keyout", f"{name}.key", "-out", f"{name}.csr")  # fmt: skip
        _openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-days", "2",
                 "-CAcreateserial", "-extfile", "names", "-out", f"{name}.crt")  # fmt: skip
    (folder / "server.pem").write_text((folder / "server.key").read_text() + (folder / "server.crt").read_text())


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)
