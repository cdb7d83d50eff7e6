"""What a store's tests subclass.

    class TestMyStore(ProviderKit):
        @pytest.fixture
        def make_provider(self, tmp_path):
            def make(service_id: str = "default") -> Provider:
                return MyProvider(f"my://{tmp_path}", service_id=service_id)
            return make

``make_provider`` answers providers, not yet open, that all lead to one store, empty when the test begins;
rows stay in it from one provider to the next.  The kit opens one at a time, with handles of its membership
beside it, and closes it.  ``members_in_threads = False`` says that such a handle cannot have a thread of its
own.  Plain asserts are
explained by pytest after ``pytest.register_assert_rewrite("farro.providers.conformance")`` in a conftest.py.
"""

from __future__ import annotations

from farro.providers.conformance.batches import BatchKit
from farro.providers.conformance.cluster import ClusterKit
from farro.providers.conformance.grains import GrainKit
from farro.providers.conformance.listing import ListingKit
from farro.providers.conformance.membership import MembershipKit
from farro.providers.conformance.polling import PollKit
from farro.providers.conformance.reminders import ReminderKit
from farro.providers.conformance.requests import RequestKit
from farro.providers.conformance.stores import MakeProvider
from farro.providers.conformance.streams import StreamKit

__all__ = ["MakeProvider", "ProviderKit"]


class ProviderKit(
    BatchKit, ClusterKit, GrainKit, ListingKit, MembershipKit, PollKit, ReminderKit, RequestKit, StreamKit
):
    """Every sentence of :mod:`farro.providers.contracts`, as a test."""
