"""A proxy that a client renews through a real GRAM reaches the program that runs."""

from tests.gram.gram_site import OURS, GramSite, configured, sh
from tests.waiting import wait_until

WAIT = """cp "$X509_USER_PROXY" before; true >started
while cmp -s "$X509_USER_PROXY" before; do sleep 1; done
echo "$X509_USER_PROXY" >name; stat -c %a "$X509_USER_PROXY" >mode; cp "$X509_USER_PROXY" after"""


def test_a_proxy_that_was_renewed_through_gram_reaches_the_program_that_runs(gram: GramSite) -> None:
    folder = gram.make_folder("renewal")
    with configured(gram, "[monitor]\ncredential_interval = 1\n"):
        contact = gram.submit(OURS, sh(WAIT) + f"(directory={folder})")
        wait_until((folder / "started").exists, "the program starts")
        certificate = ["-cert", str(gram.folder / "griduser.pem"), "-key", str(gram.folder / "griduser.key")]
        made = gram.run("grid-proxy-init", "-q", "-valid", "12:00", *certificate)
        assert made.status == 0, made.words
        renewed = gram.run("globusrun", "-refresh-proxy", contact)
        assert renewed.status == 0, renewed.words
        wait_until(lambda: gram.status(contact) == "DONE", "the program sees the new proxy")
    job = gram.grid_job(contact)
    before, after = ((folder / name).read_bytes() for name in ("before", "after"))
    assert before.startswith(b"-----BEGIN CERTIFICATE-----")
    assert after.startswith(b"-----BEGIN CERTIFICATE-----")
    copy = gram.state / "jobs" / job / "credentials" / "x509_user_proxy"
    assert [(folder / name).read_text() for name in ("name", "mode")] == [f"{copy}\n", "600\n"]
    assert gram.query(job, "string(//credential/@named-by)") == "gram"
    assert not copy.parent.exists()
