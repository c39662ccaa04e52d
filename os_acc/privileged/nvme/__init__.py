# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.

"""A small NVMe driver in user space, to empty a drive between two tenants.

References such as "Base 3.5.1" are to sections of the NVM Express Base
Specification, revision 2.0c; "NVM 3.2.4" is the NVM Command Set
Specification, revision 1.0c.
"""
