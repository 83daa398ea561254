"""Pieces of URLs, odd ones more often than the web has them."""


def _words(text, *more):
    return (*text.split(), *more)


SCHEMES = _words("http http https https HTTP HttpS ftp ws data file x-y")
HOSTS = _words(
    """
    example.com www.example.com EXAMPLE.COM localhost a_b.example a-b.example example.com. www.com
    b\xfccher.example xn--bcher-kva.example \uff45x.example 127.0.0.1 127.1 0x7f.1 2130706433
    0177.0.0.1 256.1.1.1 1.2.3.4. 08 [::1] [0:0::1] [2001:DB8::1] [::ffff:1.2.3.4] [fe80::1%25eth0]
    1.example.0x ex%61mple.com example..com .example.com _ - \xdf.example
    """,
    "a" * 70 + ".example",
)
USERS = _words("@ u@ u:p@ :@ u%40:p%3a@", *[""] * 9)
PORTS = _words(": :80 :443 :8080 :0080 :21 :65535 :59999 :60000 :0", *[""] * 6)
WORDS = _words(
    """
    a b A page id caf\xe9 \u4e2d index.html index.php x.y ~u . .. ... .a %2e %2E%2e %2F %2f a;b=1 ;
    a;jsessionid=1 %41 %7e %7E %zz % %4 %25 %2525 a+b a%2Bb a%20b !'()* a,b:c@d $&= [x] a|b a^b "
    <> ` {} \\ %5C %ff %00
    """,
    *("", "", "a b", "\x7f"),
)
NAMES = _words(
    """
    a b a1 a- id page q A utm_source utm_ gclid fbclid %75tm_x _ga ref sid PHPSESSID caf\xe9 a%20b
    a+b a[] a%5B%5D ~
    """,
    "",
)
