"""Writes a folder for a deployment: the Flower app, the configuration, trial certificates and keys, the commands."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import tomli_w

from fedalign.config import Config, to_toml
from fedalign.errors import UserError
from fedalign.registry import Choice
from fedalign.system.files import PRIVATE, write_atomically

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
    from cryptography.x509 import Certificate, GeneralName

SERVER_ONLY = ("path", "parties", "client", "test_file", "aliases")  # of the data set's options
C = TypeVar("C", bound=Choice)
AUTHORITY = "fedalign trial authority"
AUTHORITY_DAYS = 365  # so that a server's certificate can be renewed without a new invitation
APP = '''"""The ServerApp and the ClientApp of the run, for Flower."""

from fedalign.flower.apps import client_app, server_app

__all__ = ["client_app", "server_app"]
'''


def for_parties(config: Config) -> Config:
    """Returns the configuration without what only a simulation needs: each party reads its own file."""
    encoder = beside(config.encoder)
    own = {party: beside(choice) for party, choice in config.encoder.parties.items()}
    changes = {"algorithm": beside(config.algorithm), "encoder": encoder.model_copy(update={"parties": own})}
    config = config.model_copy(update=changes)
    if config.dataset.name != "files":
        return config
    kept = {key: value for key, value in config.dataset.options.items() if key not in SERVER_ONLY or key == "aliases"}
    return config.model_copy(update={"dataset": Choice(name="files", **kept)})


def beside(choice: C) -> C:
    """Returns the choice with its program, if it is one, where each machine starts its SuperNode or SuperLink."""
    return choice.model_copy(update={"name": f"./{Path(choice.name).name}"}) if choice.name.endswith(".py") else choice


def write_app(folder: Path, config: Config, **settings: str | int | float | bool) -> Path:
    """Writes the app folder for `flwr run`: two small files that include the run's configuration."""
    from fedalign.flower.party_privacy import check_deployable, check_report

    if config.labels.adapter:
        raise UserError("labels.adapter is for runs on one machine so far; remove it to deploy")
    check_deployable(config)
    check_report(config)
    folder.mkdir(parents=True, exist_ok=True)
    project = {
        "build-system": {"requires": ["hatchling"], "build-backend": "hatchling.build"},
        "project": {
            "name": "fedalign-run",
            "version": "1.0.0",
            "description": "A fedalign run",
            "license": "Apache-2.0",
            "dependencies": [],
        },
        "tool": {
            "hatch": {"build": {"targets": {"wheel": {"packages": ["."]}}}},
            "flwr": {
                "app": {
                    "publisher": "fedalign",
                    "components": {"serverapp": "fedalign_app:server_app", "clientapp": "fedalign_app:client_app"},
                    "config": {"config": to_toml(config), **settings},
                }
            },
        },
    }
    write_atomically(folder / "pyproject.toml", tomli_w.dumps(project, multiline_strings=True))
    write_atomically(folder / "fedalign_app.py", APP)
    return folder


def write_flower_home(folder: Path, address: str, certificate: Path | None) -> Path:
    """Writes Flower's own settings: the name `parties` for the SuperLink of this run."""
    folder.mkdir(parents=True, exist_ok=True)
    link: dict[str, object] = {"address": address}
    link |= {"insecure": True} if certificate is None else {"root-certificates": str(certificate.resolve())}
    write_atomically(folder / "config.toml", tomli_w.dumps({"superlink": {"default": "parties", "parties": link}}))
    return folder


def write_certificates(folder: Path, hosts: Sequence[str], days: int = 30) -> None:
    """Writes a certificate authority and a server certificate for trials; real runs use those of your organisation."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP384R1())
    found = _certificate(AUTHORITY, key.public_key(), key, max(days, AUTHORITY_DAYS), ())
    write_atomically(folder / "ca.crt", found.public_bytes(serialization.Encoding.PEM))
    write_atomically(folder / "ca.key", _secret(key), PRIVATE)
    write_server_certificate(folder, hosts, days)


def write_server_certificate(folder: Path, hosts: Sequence[str], days: int = 30) -> datetime.datetime:
    """Writes a server certificate of the folder's trial authority; returns when it expires."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    authority = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    assert isinstance(authority, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP384R1())
    found = _certificate(hosts[0], key.public_key(), authority, days, hosts)
    write_atomically(folder / "server.pem", found.public_bytes(serialization.Encoding.PEM))
    write_atomically(folder / "server.key", _secret(key), PRIVATE)
    return found.not_valid_after_utc


def _secret(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization

    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _certificate(
    name: str, key: EllipticCurvePublicKey, signer: EllipticCurvePrivateKey, days: int, hosts: Sequence[str]
) -> Certificate:
    """Returns a certificate for these hosts, or that of the authority if there are none."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import NameOID

    now, ca = datetime.datetime.now(datetime.UTC), not hosts
    usage = dict.fromkeys(("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"), False)
    usage |= {"digital_signature": True, "key_cert_sign": ca, "crl_sign": ca}
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, AUTHORITY)]))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=0 if ca else None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .add_extension(x509.KeyUsage(**usage, encipher_only=False, decipher_only=False), critical=True)
    )
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName([_place(host) for host in hosts]), critical=False)
    return builder.sign(signer, hashes.SHA384())


def _place(host: str) -> GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def write_key(path: Path) -> None:
    """Writes a party's key pair. The private key stays with the party, the public key is registered with the server."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    path.parent.mkdir(parents=True, exist_ok=True)
    form = serialization.PrivateFormat.OpenSSH
    secret = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    write_atomically(path, secret, PRIVATE)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    write_atomically(path.with_name(path.name + ".pub"), public + b"\n")


def hosts_of(host: str) -> list[str]:
    """Returns the names in the server's certificate."""
    return list(dict.fromkeys([host, "localhost", "127.0.0.1"]))


def write_kit(folder: Path, config: Config, parties: Sequence[str], host: str, port: int) -> None:
    """Writes everything for a first run, with instructions for several machines."""
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} exists already and is not empty; give another folder")
    from fedalign.labels.names import allowed
    from fedalign.runs.own_encoders import check_names

    check_names(config, parties)
    for party in parties:
        if not allowed(party).replace("-", "").replace("_", "").isalnum():
            raise UserError(f"party name {party!a} is used as a file name here; use letters, digits, - and _")
    write_certificates(folder / "certificates", hosts_of(host))
    write_app(
        folder / "app",
        config,
        out="run",
        parties=len(parties),
        wait=600,
        timeout=3600,
        resume=False,
        new_classes="refuse",
        evaluate_every=5,
        approved="",
        packed=False,
        dropped="",
        trial=False,
    )
    write_flower_home(folder / "flower-home", f"{host}:{port}", folder / "certificates" / "ca.crt")
    write_atomically(folder / "config.toml", to_toml(config))
    write_atomically(folder / "README.md", instructions(parties, host, port))


def instructions(parties: Sequence[str], host: str, port: int) -> str:
    """Returns the README of the folder."""
    joins = "\n".join(f"fedalign party join invitation.json /path/of/{party}.csv --name {party}" for party in parties)
    starts = "\n".join(f"fedalign party {party}" for party in parties)
    admits = "\n".join(f"fedalign server admit . {party} KEY" for party in parties)
    return f"""# A run with parties on their own machines

The certificates are for trials; replace them with those of your organisation. On every machine:
`pip install 'fedalign[flower]'`. The server listens on {host}, port {port}.

## Server, in this folder

Send `invitation.json` to every party. It holds nothing secret. Then:

```
fedalign server .
```

Each party sends back the public key that it made. Admit it, while the server runs or before:

```
{admits}
```

## Each party, on its own machine

`join` shows what will leave, asks for approval, makes the private key there and prints the public key:

```
{joins}
```

Then:

```
{starts}
```

The run begins when all parties are connected. Its folder is `run/`. The same commands resume it after a crash. To use
the model: `fedalign predict run new.csv`.
"""
