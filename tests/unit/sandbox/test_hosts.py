"""One spelling for a host, one judgement for an address: the inputs are those that resolvers and parsers read apart."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soong.shared.sandbox.hosts import AddressClass, HostRefusedError, is_host_within, normal_host, reach_of

LOOPBACK = [
    *("127.0.0.1", "127.1", "127.0.1", "2130706433", "0x7f000001", "0X7F.1", "0177.0.0.1", "017700000001"),
    *("\uff11\uff12\uff17.0.0.1", "127\u30020.0.1", "127\uff0e0.0\uff611", "127.0.0.1\u00ad", "127.0.0.1."),
    *("[::ffff:127.0.0.1]", "[::ffff:7f00:1]"),
]


@pytest.mark.spec("PER-09")
@pytest.mark.parametrize("host", LOOPBACK)
def test_every_spelling_of_an_address_is_that_address(host: str) -> None:
    assert normal_host(host) == "127.0.0.1"


@pytest.mark.spec("PER-09")
@pytest.mark.parametrize(
    ("host", "normal"),
    [
        ("EXAMPLE.org", "example.org"),
        ("example.org.", "example.org"),
        ("b\u00fccher.example", "xn--bcher-kva.example"),
        ("B\u00dcCHER.example", "xn--bcher-kva.example"),
        ("exam\u00adple.org", "example.org"),
        ("\uff45xample.org", "example.org"),
        ("example\u3002org", "example.org"),
        ("my_host", "my_host"),
        ("[2001:DB8::0001]", "2001:db8::1"),
        ("::1", "::1"),
        ("0", "0.0.0.0"),  # an address to be refused, nothing listens there
    ],
)
def test_names_that_resolve_alike_are_one_name(host: str, normal: str) -> None:
    assert normal_host(host) == normal


@pytest.mark.spec("PER-09")
@pytest.mark.parametrize(
    "host",
    [
        "",
        ".",
        "a..b",
        "example.org..",
        "-a.org",
        "a b.org",
        "a/b",
        "a\\b",
        "a@b",
        "a?b",
        "a%62",
        "a\0b",
        "a\nb",
        "1.2.3.256",
        "1.2.3.4.5",
        "4294967296",
        "0x1ffffffff",
        "08.1.1.1",
        "example.123",
        "fe80::1%eth0",
        "[fe80::1%25eth0]",
        "[::1",
        ":::",
        "a" * 64 + ".org",
        "a." * 127 + "org",
        "9" * 4000,
    ],
)
def test_what_resolvers_disagree_on_is_no_host(host: str) -> None:
    with pytest.raises(HostRefusedError):
        normal_host(host)


@given(st.text(max_size=40))
def test_a_normal_host_is_stable_or_there_is_none(text: str) -> None:
    try:
        once = normal_host(text)
    except HostRefusedError:
        return
    assert normal_host(once) == once
    assert once.isascii()
    assert once == once.lower()


@pytest.mark.spec("PER-09")
@pytest.mark.parametrize(
    ("host", "wanted", "is_within"),
    [
        ("example.org", "example.org", True),
        ("Example.ORG.", "example.org", True),
        ("api.example.org", "example.org", False),
        ("api.example.org", "*.example.org", True),
        ("a.b.example.org", "*.example.org", True),
        ("example.org", "*.example.org", False),
        ("badexample.org", "*.example.org", False),
        ("example.org.evil.test", "*.example.org", False),
        ("2130706433", "127.0.0.1", True),
        ("127.0.0.1", "*.0.0.1", False),
        ("", "example.org", False),
        ("a b", "a b", False),
    ],
)
def test_a_host_lies_within_by_labels_and_by_its_normal_form(host: str, wanted: str, is_within: bool) -> None:
    assert is_host_within(host, wanted) is is_within


@pytest.mark.spec("PER-09")
@pytest.mark.parametrize(
    ("address", "reach"),
    [
        ("93.184.215.14", AddressClass.PUBLIC),
        ("2606:2800:21f:cb07:6820:80da:af6b:8b2c", AddressClass.PUBLIC),
        ("64:ff9b::5db8:d70e", AddressClass.PUBLIC),
        ("127.0.0.1", AddressClass.NEAR),
        ("127.255.255.254", AddressClass.NEAR),
        ("10.1.2.3", AddressClass.NEAR),
        ("172.31.0.1", AddressClass.NEAR),
        ("192.168.1.1", AddressClass.NEAR),
        ("100.64.0.1", AddressClass.NEAR),
        ("::1", AddressClass.NEAR),
        ("fd12::1", AddressClass.NEAR),
        ("::ffff:127.0.0.1", AddressClass.NEAR),
        ("::127.0.0.1", AddressClass.NEAR),
        ("64:ff9b::7f00:1", AddressClass.NEAR),
        ("2002:7f00:1::", AddressClass.NEAR),
        ("0.0.0.0", AddressClass.SPECIAL),  # an address to be refused
        ("::", AddressClass.SPECIAL),
        ("169.254.169.254", AddressClass.SPECIAL),
        ("::ffff:169.254.169.254", AddressClass.SPECIAL),
        ("64:ff9b::a9fe:a9fe", AddressClass.SPECIAL),
        ("2002:a9fe:a9fe::1", AddressClass.SPECIAL),
        ("fd00:ec2::254", AddressClass.SPECIAL),
        ("100.100.100.200", AddressClass.SPECIAL),
        ("168.63.129.16", AddressClass.SPECIAL),
        ("224.0.0.1", AddressClass.SPECIAL),
        ("255.255.255.255", AddressClass.SPECIAL),
        ("192.0.2.1", AddressClass.SPECIAL),
        ("fe80::1", AddressClass.SPECIAL),
        ("fe80::1%eth0", AddressClass.SPECIAL),
        ("ff02::1", AddressClass.SPECIAL),
        ("2001:0:1::1", AddressClass.SPECIAL),
        ("64:ff9b:1::1", AddressClass.SPECIAL),
        ("4000::1", AddressClass.SPECIAL),
    ],
)
def test_an_address_leads_where_the_one_inside_it_does(address: str, reach: AddressClass) -> None:
    assert reach_of(address) is reach


def test_what_is_no_address_is_judged_by_nobody() -> None:
    with pytest.raises(HostRefusedError):
        reach_of("example.org")
